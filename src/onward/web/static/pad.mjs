// Where pictures come from: drawn by mouse, finger, pen or keyboard; the camera; files that are chosen or dropped.

const LONG = 320; // pixels of the longer side of what is drawn

export class Pad {
  /** `changed(kind)` is called when there is something new to look at, `problem(text)` when a source does not work. */
  constructor(page, image, { changed, problem }) {
    Object.assign(this, { page, image, changed, problem, from: "draw", stream: null, files: [], blank: true });
    const { height, width } = image, scale = LONG / Math.max(height, width);
    this.canvas = page.pad;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    page.stage.style.aspectRatio = `${width} / ${height}`;
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    page.dark.checked = image.channels > 1;
    page.dark.onchange = () => this.clear();
    page.clear.onclick = () => this.clear();
    for (const radio of document.getElementsByName("from")) radio.onchange = () => this.choose(radio.value);
    this.#listen();
    this.clear();
  }

  /** Return the pictures to look at, as bitmaps or files; none if there is nothing. */
  async pictures() {
    if (this.from === "files") return this.files.map((file) => ({ file }));
    if (this.from === "draw") return this.blank ? [] : [{ bitmap: await createImageBitmap(this.canvas) }];
    const { videoWidth: w, videoHeight: h } = this.page.video, { width, height } = this.image;
    if (!w) return [];
    const share = Math.min(w / width, h / height), [cw, ch] = [Math.round(width * share), Math.round(height * share)];
    return [{ bitmap: await createImageBitmap(this.page.video, (w - cw) >> 1, (h - ch) >> 1, cw, ch) }]; // the middle, in the model's proportions
  }

  clear() {
    this.context.fillStyle = this.page.dark.checked ? "#fff" : "#000";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.blank = true;
    this.last = this.pen = null;
    this.page.hint.hidden = this.from !== "draw";
    this.page.stage.classList.toggle("light", this.page.dark.checked);
    this.files = [];
    this.page.preview.hidden = true;
    this.changed("clear");
  }

  async choose(from) {
    this.from = from;
    const { page } = this;
    page.pad.hidden = page["pad-tools"].hidden = from !== "draw";
    page.video.hidden = from !== "camera";
    page.drop.hidden = from !== "files";
    this.stream?.getTracks().forEach((track) => track.stop());
    this.stream = null;
    this.clear();
    if (from === "camera") await this.#startCamera();
  }

  async #startCamera() {
    try {
      if (!navigator.mediaDevices) throw new Error("the page must be open over https or on localhost");
      const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 640 }, height: { ideal: 480 } } });
      if (this.from !== "camera") return stream.getTracks().forEach((track) => track.stop());
      this.stream = this.page.video.srcObject = stream;
      await this.page.video.play();
      this.changed("camera");
    } catch (error) { this.problem(`The camera does not work here: ${error.message}`); }
  }

  #place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * this.canvas.width, ((event.clientY - box.top) / box.height) * this.canvas.height];
  }

  #line(from, to) {
    const g = this.context;
    g.lineWidth = LONG / 12;
    g.lineCap = g.lineJoin = "round";
    g.strokeStyle = g.fillStyle = this.page.dark.checked ? "#000" : "#fff";
    g.beginPath();
    g.moveTo(...from);
    g.lineTo(...to);
    g.stroke();
    g.beginPath(); // of a line without a length nothing is drawn, but a tap is a dot
    g.arc(...to, g.lineWidth / 2, 0, 7);
    g.fill();
    this.blank = false;
    this.page.hint.hidden = true;
    this.changed("draw");
  }

  #listen() {
    const { canvas, page } = this;
    canvas.onpointerdown = (event) => {
      if (event.button) return;
      canvas.setPointerCapture(event.pointerId);
      this.last = this.#place(event);
      this.#line(this.last, this.last);
    };
    canvas.onpointermove = (event) => {
      if (!this.last) return;
      for (const each of event.getCoalescedEvents?.() ?? [event]) { const to = this.#place(each); this.#line(this.last, to); this.last = to; }
    };
    canvas.onpointerup = canvas.onpointercancel = () => { this.last = null; };
    canvas.onkeydown = (event) => this.#key(event);
    page.files.onchange = () => { this.#take(page.files.files); page.files.value = ""; };
    for (const name of ["dragover", "drop"]) document.addEventListener(name, (event) => {
      event.preventDefault();
      if (name === "drop" && event.dataTransfer.files.length) { this.#take(event.dataTransfer.files); }
    });
  }

  #key(event) {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Delete" || event.key === "Backspace") { this.clear(); return event.preventDefault(); }
    if (!move && event.key !== " ") return;
    event.preventDefault();
    this.pen ??= { at: [this.canvas.width / 2, this.canvas.height / 5], down: false };
    if (event.key === " ") { this.pen.down = !this.pen.down; if (this.pen.down) this.#line(this.pen.at, this.pen.at); return; }
    const to = this.pen.at.map((v, i) => Math.max(0, Math.min([this.canvas.width, this.canvas.height][i], v + move[i] * 12)));
    if (this.pen.down) this.#line(this.pen.at, to);
    this.pen.at = to;
  }

  async #take(files) {
    const radio = [...document.getElementsByName("from")].find((r) => r.value === "files");
    if (!radio.checked) { radio.checked = true; await this.choose("files"); }
    this.files = [...files];
    this.changed("files");
  }
}
