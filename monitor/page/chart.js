// A small line chart over time in SVG: several lines of one unit, a cursor for pointer and keyboard, and words for
// those who do not see it. No library: there is none on the package index that brings its own script, is small and
// is kept up, and this is all that is needed.

import { clock } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 640;
const HEIGHT = 168;
const LEFT = 62;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;

export function svg(name, attributes = {}, text = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
}

// `binary` steps for bytes, decimal ones for counts; returns the highest line of the grid and its step.
function scale(highest, binary) {
  if (!(highest > 0)) return { top: 1, step: 1 };
  const base = binary ? 1024 : 10;
  const unit = base ** Math.floor(Math.log(highest) / Math.log(base));
  const steps = binary ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] : [1, 2, 5];
  const rough = highest / 3;
  let step = unit;
  for (const power of [unit / base, unit]) {
    for (const factor of steps) {
      step = factor * power;
      if (step >= rough) break;
    }
    if (step >= rough) break;
  }
  if (!binary) step = Math.max(1, step);
  return { top: Math.ceil(highest / step) * step, step };
}

export class Chart {
  // `series`: [{name, key, kind}], `kind` one of c0, c1, c2; `say` turns a value into words.
  constructor(figure, { title, series, say, binary, nothing }) {
    this.figure = figure;
    this.options = { title, series, say, binary, nothing };
    this.rows = [];
    this.place = null;
    const caption = document.createElement("figcaption");
    caption.append(title);
    for (const each of series) {
      const key = document.createElement("span");
      key.className = "key";
      const line = svg("svg", { viewBox: "0 0 24 10", "aria-hidden": "true" });
      line.append(svg("line", { x1: 0, x2: 24, y1: 5, y2: 5, class: each.kind }));
      key.append(line, ` ${each.name}`);
      caption.append(key);
    }
    this.hole = document.createElement("div");
    this.reading = document.createElement("p");
    this.reading.className = "reading";
    this.reading.setAttribute("aria-live", "off");
    figure.append(caption, this.hole, this.reading);
  }

  // `rows`: [{at, <key>: number or null}] in order of time.
  show(rows) {
    this.rows = rows.filter((row) => this.options.series.some((each) => row[each.key] !== null));
    if (this.rows.length < 2) {
      const empty = document.createElement("div");
      empty.className = "empty";
      empty.textContent = this.options.nothing;
      this.hole.replaceChildren(empty);
      this.picture = null;
      this.reading.textContent = "";
      return;
    }
    if (!this.picture) {
      this.picture = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", tabindex: "0" });
      this.picture.addEventListener("pointermove", (event) => this.point(event));
      this.picture.addEventListener("pointerleave", () => this.move(null));
      this.picture.addEventListener("keydown", (event) => this.key(event));
      this.picture.addEventListener("blur", () => this.move(null));
      new ResizeObserver(() => this.draw()).observe(this.picture);
      this.hole.replaceChildren(this.picture);
    }
    this.draw();
  }

  draw() {
    if (!this.picture) return;
    const { series, say, binary, title } = this.options;
    // Drawn at the size it has, so that text keeps its shape.
    const width = Math.max(240, this.picture.clientWidth || WIDTH);
    this.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const [first, last] = [this.rows[0].at, this.rows[this.rows.length - 1].at];
    const values = this.rows.flatMap((row) => series.map((each) => row[each.key])).filter((value) => value !== null);
    const { top, step } = scale(Math.max(...values), binary);
    this.x = (at) => LEFT + ((at - first) / (last - first)) * (width - LEFT - RIGHT);
    this.y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (let value = 0; value <= top + step / 2; value += step) {
      const y = this.y(value).toFixed(1);
      parts.push(svg("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y, class: "grid" }));
      parts.push(svg("text", { x: LEFT - 6, y: Number(y) + 4, "text-anchor": "end" }, say(value)));
    }
    const ticks = width > 420 ? 4 : 2;
    for (let tick = 0; tick <= ticks; tick += 1) {
      const at = first + ((last - first) * tick) / ticks;
      const anchor = tick === 0 ? "start" : tick === ticks ? "end" : "middle";
      parts.push(svg("text", { x: this.x(at).toFixed(1), y: HEIGHT - 4, "text-anchor": anchor }, clock(at, last - first < 600)));
    }
    for (const each of series) {
      const points = this.rows.filter((row) => row[each.key] !== null);
      const path = points.map((row, index) => `${index ? "L" : "M"}${this.x(row.at).toFixed(1)} ${this.y(row[each.key]).toFixed(1)}`).join("");
      if (each.kind === "c0" && points.length) {
        parts.push(svg("path", { d: `${path}L${this.x(points[points.length - 1].at).toFixed(1)} ${this.y(0)}L${this.x(points[0].at).toFixed(1)} ${this.y(0)}Z`, class: "area0" }));
      }
      parts.push(svg("path", { d: path, class: each.kind }));
    }
    this.cursor = svg("line", { y1: TOP, y2: HEIGHT - BOTTOM, x1: -10, x2: -10, class: "cursor" });
    parts.push(this.cursor);
    this.picture.replaceChildren(...parts);
    const latest = this.rows[this.rows.length - 1];
    const highest = series.map((each) => {
      const seen = this.rows.map((row) => row[each.key]).filter((value) => value !== null);
      const now = latest[each.key];
      return `${each.name}: now ${now === null ? "unknown" : say(now)}, highest ${say(Math.max(...seen))}`;
    });
    this.picture.setAttribute("aria-label", `${title} from ${clock(first)} to ${clock(last)}. ${highest.join("; ")}. Arrow keys read single moments.`);
    if (this.place !== null) this.move(Math.min(this.place, this.rows.length - 1));
  }

  point(event) {
    const box = this.picture.getBoundingClientRect();
    const x = event.clientX - box.left;
    let best = 0;
    this.rows.forEach((row, index) => { if (Math.abs(this.x(row.at) - x) < Math.abs(this.x(this.rows[best].at) - x)) best = index; });
    this.move(best);
  }

  key(event) {
    const end = this.rows.length - 1;
    const here = this.place ?? end;
    const places = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: end, PageUp: here - 10, PageDown: here + 10 };
    if (event.key === "Escape") { this.move(null); return; }
    if (!(event.key in places)) return;
    event.preventDefault();
    this.reading.setAttribute("aria-live", "polite");
    this.move(Math.max(0, Math.min(end, places[event.key])));
  }

  move(place) {
    this.place = place;
    if (place === null) {
      this.cursor?.setAttribute("x1", -10);
      this.cursor?.setAttribute("x2", -10);
      this.reading.textContent = "";
      this.reading.setAttribute("aria-live", "off");
      return;
    }
    const row = this.rows[place];
    const x = this.x(row.at).toFixed(1);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    const values = this.options.series.map((each) => `${each.name} ${row[each.key] === null ? "unknown" : this.options.say(row[each.key])}`);
    this.reading.textContent = `${clock(row.at, true)}: ${values.join(", ")}`;
  }
}
