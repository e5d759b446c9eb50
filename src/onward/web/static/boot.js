// Says what is wrong where the page's own modules cannot: when one of them does not load, or cannot be read.
"use strict";
window.sayProblem = function (text) {
  var box = document.getElementById("problem");
  if (!box) return document.addEventListener("DOMContentLoaded", function () { window.sayProblem(text); });
  box.hidden = false;
  box.firstElementChild.replaceChildren(...text.split("`").map(function (part, at) { // what is between two backticks is a name
    return at % 2 ? Object.assign(document.createElement("code"), { textContent: part }) : part;
  }));
};
window.addEventListener("error", function (event) {
  var of = event.target;
  if (of && of !== window && (of.src || of.href)) window.sayProblem("`" + (of.src || of.href).split("/").pop() + "` could not be loaded, or is damaged. Reload the page.");
  else if (event.message) window.sayProblem((event.filename ? "`" + event.filename.split("/").pop() + "`: " : "") + event.message);
}, true);
