// The loss landscape around the newest weights: figures, the line along the update, and a plane.

import { colourOf, Frame, isDark, needsLog } from "./charts.js";
import { VALUE_COLOURS } from "./colours.js";
import { button, el, fill, lock, number, section } from "./dom.js";
import { TaskHead } from "./standby_tasks.js";

const LINE_PX = 240;
const PLANE_PX = 720;
const RING_PX = 20;
const FAR = 1e9;
const FINEST = 1e5;
const FIELDS = [["points", "Points", 3000, 1, 20000], ["seconds", "At most (s)", 60, 1, 3600], ["side", "Points per side", 51, 3, 101]];

export class LandscapeScreen {
  constructor(store, act) {
    this.store = store;
    this.act = act;
    this.inputs = FIELDS.map(([name, label, value, min, max]) => [name, el("label", {}, `${label} `, el("input", { type: "number", name, value: String(value), min: String(min), max: String(max), required: true }))]);
    this.ways = el("select", { "aria-label": "plane" }, ["random", "path"].map((name) => el("option", { value: name }, name === "path" ? "the run's path" : "random directions")));
    this.start = el("button", { type: "submit" }, "Compute");
    this.end = button("End", "", () => act.propose({ kind: "landscape", points: 0 }));
    this.head = new TaskHead(store, "landscape", "survey");
    const form = el("form", { className: "row", onsubmit: (event) => { event.preventDefault(); this.request(); } }, this.inputs.map(([, label]) => label), el("label", {}, "Plane of ", this.ways), this.start, this.end);
    this.found = el("div");
    this.line = new Frame("Loss along the update", "by multiples of the update");
    this.canvas = el("canvas", { className: "plane", role: "img", "aria-label": "The plane: no data yet", width: PLANE_PX, height: PLANE_PX });
    this.surface = el("div", { className: "surface", role: "img", tabindex: "0", hidden: true, onkeydown: (event) => { if (this.threeD?.turn(this.surface, event.key)) event.preventDefault(); } });
    this.in3d = el("button", { type: "button", "aria-pressed": "false", onclick: () => this.switch3d() }, "3-D");
    this.legend = el("p", { className: "faint" });
    this.parts = [
      section("Loss landscape: compute it on a standby", { className: "wide" }, form, this.head.place),
      section("Result", {}, this.found),
      section("Along the update", {}, this.line.place),
      el("section", { "aria-label": "In a plane" }, el("div", { className: "row" }, el("h2", {}, "In a plane"), this.in3d), this.canvas, this.surface, this.legend),
    ];
  }

  wanted() {
    return { landscape: true, preview: true };
  }

  request() {
    const wanted = Object.fromEntries(this.inputs.map(([name, label]) => [name, Number(label.querySelector("input").value)]));
    return this.act.propose({ kind: "landscape", plane: this.ways.value, ...wanted });
  }

  update() {
    const { landscape, preview } = this.store;
    const why = this.act.lock();
    lock(this.start, why);
    lock(this.end, why || (this.head.isUnderWay() ? "" : "no landscape is under way"));
    this.head.update(landscape?.command, landscape?.bend?.of_step);
    fill(this.found, JSON.stringify([landscape?.points, landscape?.of, landscape?.bend, landscape?.plane, landscape?.end]), () => rowsOf(landscape));
    const { parts } = this;
    parts[2].hidden = !landscape?.line?.length;
    parts[3].hidden = !landscape?.cells?.some(([, , loss]) => loss !== null);
    if (!landscape) return;
    this.branch = branchOf(landscape, preview);
    const dark = isDark();
    const { width } = this.line;
    const line = `${landscape.command} ${landscape.line.length} ${width} ${dark}`;
    if (width && line !== this.drawnLine) this.drawLine(landscape, width);
    this.drawnLine = width ? line : this.drawnLine;
    const plane = `${landscape.command} ${landscape.cells.length} ${JSON.stringify(landscape.plane)} ${this.branch}`;
    if (plane !== this.drawnPlane) this.drawPlane(landscape);
    this.drawnPlane = plane;
    const surface = `${plane} ${dark}`;
    if (this.isTurned && surface !== this.drawnSurface) this.drawSurface(landscape);
    this.drawnSurface = this.isTurned ? surface : null;
  }

  switch3d() {
    this.isTurned = !this.isTurned;
    this.in3d.setAttribute("aria-pressed", String(this.isTurned));
    this.canvas.hidden = this.isTurned;
    this.surface.hidden = !this.isTurned;
    this.update();
  }

  drawSurface({ plane, cells }) {
    if (!plane || cells.every(([, , loss]) => loss === null)) return this.threeD?.clearSurface(this.surface);
    const known = knownCells(plane, cells);
    const places = Array.from({ length: plane.side }, (_, n) => n);
    const losses = places.map((row) => places.map((column) => lossAt(known, plane.side, row, column)));
    const shares = places.map((n) => plane.reach * ((2 * n) / (plane.side - 1) - 1));
    const path = plane.path?.length ? plane.path : [[0, 0]];
    const isLogarithmic = losses.flat().every((loss) => loss === null || loss > 0);
    this.surface.setAttribute("aria-label", `${this.canvas.getAttribute("aria-label")}; arrow keys turn it`);
    const options = { losses, shares, path, branch: this.branch, isLogarithmic };
    import("./surface.js").then((threeD) => {
      this.threeD = threeD;
      return threeD.drawSurface(this.surface, options);
    }).catch((error) => this.act.say(`3-D does not work in this browser: ${error.message}`, false));
  }

  drawLine({ line }, width) {
    if (!line.length) return;
    this.line.canvas.setAttribute("aria-label", `The loss along the update, at ${line.length} points`);
    const sorted = apart([...line].sort((a, b) => a[0] - b[0]));
    const isLog = needsLog(sorted.map(([, loss]) => loss));
    fill(this.line.note, String(isLog), () => `by multiples of the update${isLog ? ", log scale" : ""}`);
    this.line.make([0, 1].map((column) => sorted.map((point) => point[column])), {
      width,
      height: LINE_PX,
      isLog,
      x: {},
      series: [{ stroke: colourOf("--accent"), width: 2 }],
      text: ({ data }, n) => `${number(data[0][n])} × the update\nloss ${number(data[1][n])}`,
    });
  }

  drawPlane({ plane, cells }) {
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, PLANE_PX, PLANE_PX);
    const losses = cells.map(([, , loss]) => loss).filter((loss) => loss !== null);
    if (!plane || !losses.length) return this.label("");
    const low = losses.reduce((a, b) => Math.min(a, b)), high = losses.reduce((a, b) => Math.max(a, b));
    const scale = low > 0 ? Math.log : (loss) => loss;
    const span = scale(high) - scale(low) || 1;
    const known = knownCells(plane, cells);
    const size = PLANE_PX / plane.side;
    for (let row = 0; row < plane.side; row += 1) {
      for (let column = 0; column < plane.side; column += 1) {
        const loss = lossAt(known, plane.side, row, column);
        if (loss === null) continue;
        context.fillStyle = VALUE_COLOURS[1 + Math.round((254 * (scale(loss) - scale(low))) / span)];
        context.fillRect(column * size, PLANE_PX - (row + 1) * size, size + 1, size + 1);
      }
    }
    this.drawPath(context, plane);
    this.label(`loss from ${number(low)} (dark) to ${number(high)} (light), ${cells.length} of ${plane.side ** 2} points; cross: the newest weights${this.branch ? "; ring: the start of the newest preview" : ""}`);
  }

  label(text) {
    fill(this.legend, text, () => text);
    this.canvas.setAttribute("aria-label", `The plane: ${text || "no data yet"}`);
  }

  drawPath(context, plane) {
    const at = (share) => ((share / plane.reach + 1) / 2) * PLANE_PX;
    context.strokeStyle = context.fillStyle = "#fff";
    context.lineWidth = 2;
    context.beginPath();
    for (const [row, column] of plane.path ?? []) {
      context.lineTo(at(column), PLANE_PX - at(row));
      context.fillRect(at(column) - 4, PLANE_PX - at(row) - 4, 8, 8);
    }
    const middle = PLANE_PX / 2;
    for (const side of [-1, 1]) {
      context.moveTo(middle - 12, middle - 12 * side);
      context.lineTo(middle + 12, middle + 12 * side);
    }
    context.stroke();
    if (!this.branch) return;
    context.beginPath();
    context.arc(at(this.branch[1]), PLANE_PX - at(this.branch[0]), RING_PX, 0, 2 * Math.PI);
    context.stroke();
  }
}

// Points that a chart can draw apart: closer or farther ones would slow it down.
function apart(points) {
  const near = points.filter(([share]) => Math.abs(share) <= FAR);
  const least = near.length ? (near.at(-1)[0] - near[0][0]) / FINEST : 0;
  const drawn = near.filter(([share], n) => n === 0 || share - near[n - 1][0] >= least);
  return drawn.length > 1 && least * FINEST > Math.abs(drawn[0][0]) / FINEST ? drawn : drawn.slice(0, 1);
}

// Row and column, in shares, of the weights from which the newest preview began; null: outside.
function branchOf({ bend, plane }, preview) {
  const at = preview?.at;
  if (!at || !plane) return null;
  const place = (plane.prints ?? []).lastIndexOf(at);
  if (place >= 0) return plane.path[place].slice(0, 2);
  return bend?.at === at ? [0, 0] : null;
}

function knownCells(plane, cells) {
  return new Map(cells.map(([row, column, loss]) => [row * plane.side + column, loss]));
}

// A cell that is not computed yet has the loss of the coarser cell around it.
function lossAt(known, side, row, column) {
  for (let stride = 1; stride < 2 * side; stride *= 2) {
    const place = (row - (row % stride)) * side + column - (column % stride);
    if (known.has(place)) return known.get(place);
  }
  return null;
}

function rowsOf(landscape) {
  if (!landscape?.worker) return el("p", { className: "faint" }, "No landscape yet: press Compute. It takes a standby whose script passes landscape= to attach().");
  const { bend, plane, end } = landscape;
  const rows = [["worker", landscape.worker], ["points", end ? `${end.points} in ${number(end.seconds)} s${end.why ? `: ${end.why}` : ""}` : `${landscape.points} of about ${landscape.of}`]];
  if (bend) {
    const critical = bend.critical_step ?? null, sharpness = bend.sharpness ?? null;
    rows.push(["loss", number(bend.loss)]);
    rows.push(["update", `${bend.along === "step" ? "the optimizer's step" : "the gradient, with a rate of 1"}; its length ${number(bend.length)}`]);
    rows.push(["critical step", critical === null ? "none" : `${number(critical)} x the update`]);
    rows.push(["sharpness", sharpness === null ? "the update leads up" : `${number(sharpness)}${sharpness > 2 ? ", the update is too long" : ""}`]);
    rows.push(["curvature", number(bend.curvature ?? null)]);
  }
  if (plane?.variance_explained) {
    const off = (plane.path ?? []).reduce((most, [, , away]) => Math.max(most, away), 0);
    rows.push(["path", `${plane.path.length} checkpoints: ${plane.variance_explained.map((share) => `${(100 * share).toFixed(1)} %`).join(" + ")} of their spread, up to ${number(off)} off the plane`]);
  }
  return el("table", {}, el("tbody", {}, rows.map(([name, text]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, text)))));
}
