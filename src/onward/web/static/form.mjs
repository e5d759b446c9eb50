// The form for models that do not take pictures: fields made from what the program needs, and rows of a CSV file.
import { featureValues, readCsv } from "./data.mjs";

const MOST_FIELDS = 24;

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** Return the numbers in a text: commas, semicolons, spaces or lines between them. */
function numbersIn(text, place) {
  return text.split(/[\s,;]+/).filter(Boolean).map((part) => {
    const number = Number(part);
    if (Number.isNaN(number)) throw new Error(`${place}: "${part}" is no number`);
    return number;
  });
}

export class Form {
  constructor(page, site) {
    Object.assign(this, { site, read: {} });
    for (const field of site.fields) (field.role === "input" ? page.inputs : page.targets).append(this.#group(field));
  }

  /** Return the values of the inputs (with `all` also of the targets) by name. */
  values(all = false) {
    const chosen = this.site.fields.filter((f) => all || f.role === "input");
    return Object.fromEntries(chosen.map((f) => [f.name, this.read[f.name]()]));
  }

  #group(field) {
    const { name } = field, title = field.column ?? name, group = element("fieldset", {}, element("legend", { textContent: title }));
    if (field.classes) {
      const select = element("select", { ariaLabel: title });
      this.site.classes.forEach((text, i) => select.append(element("option", { value: i, textContent: text })));
      group.append(select);
      this.read[name] = () => this.classValues(Number(select.value), field);
    } else if (field.features.length && field.features.length <= MOST_FIELDS) {
      const cells = field.features.map((feature) => {
        const cell = feature.kind === "category" ? element("select", {}, ...feature.categories.map((c) => element("option", { textContent: c }))) : element("input", { type: "number", step: "any", inputMode: "decimal" });
        if (feature.kind !== "category") cell.value = +(feature.fill ?? feature.shift ?? 0).toPrecision(4);
        group.append(element("label", { textContent: `${feature.column} ` }, cell));
        return cell;
      });
      this.read[name] = () => field.features.flatMap((feature, i) => featureValues(feature, cells[i].value, "the form"));
    } else {
      const count = field.count === null ? "" : ` (${field.count})`;
      const area = element("textarea", { rows: 4, spellcheck: false, ariaLabel: name, placeholder: `numbers${count}, with commas or spaces between` });
      group.append(area);
      this.read[name] = () => numbersIn(area.value, name);
    }
    return group;
  }

  /** Return the numbers of a target that names a class. */
  classValues(number, field) { return field.one_hot ? this.site.classes.map((_, i) => Number(i === number)) : [number]; }

  /** Return the samples of a CSV text, as values by name. Its first row names the columns; without names, the order decides. */
  rows(text) {
    const rows = readCsv(text);
    if (!rows.length) throw new Error("the file is empty");
    const wanted = this.site.fields.flatMap((f) => this.#columns(f));
    const named = wanted.every((c) => rows[0].includes(c));
    const plain = rows[0].every((cell) => cell.trim() !== "" && !Number.isNaN(Number(cell)));
    if (!named && !plain) {
      const missing = wanted.filter((c) => !rows[0].includes(c));
      throw new Error(`the file has no column ${missing.slice(0, 6).map((c) => `\`${c}\``).join(", ")}${missing.length > 6 ? " …" : ""}; it has ${rows[0].slice(0, 8).join(", ")}`);
    }
    if (!named && rows[0].length !== wanted.length) throw new Error(`the file has ${rows[0].length} columns without names, and the model takes ${wanted.length}`);
    const at = Object.fromEntries(wanted.map((c, i) => [c, named ? rows[0].indexOf(c) : i]));
    return rows.slice(named ? 1 : 0).map((row, i) => Object.fromEntries(this.site.fields.map((f) => [f.name, this.#cells(f, (c) => row[at[c]], `row ${i + 1}`)])));
  }

  #columns(field) {
    if (field.classes) return [field.column];
    return field.features.map((f) => f.column);
  }

  #cells(field, cell, place) {
    if (!field.classes) return field.features.flatMap((feature) => featureValues(feature, cell(feature.column), place));
    const text = String(cell(field.column) ?? "").trim(), named = this.site.classes.indexOf(text), number = named >= 0 ? named : Number(text);
    if (text === "" || !Number.isInteger(number) || number < 0 || number >= this.site.classes.length)
      throw new Error(`${place}: \`${field.column}\` is "${text}", which is none of the classes ${this.site.classes.slice(0, 8).join(", ")}`);
    return this.classValues(number, field);
  }
}
