// A plane of losses in three dimensions: Plotly, which is loaded on the first request.

import { VALUE_COLOURS } from "./colours.js";

const PLOTLY = "/page/vendor/plotly-gl3d.min.js";
const STOPS = 16;
const TURN = Math.PI / 24;
const STEEPEST = 1.4;
const TURNS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
const DECADES = 2; // from so many on, the axis has whole decades only
const MOST_DECADES = 6;
const BARE = { displayModeBar: false, responsive: true };

let loading;

function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = PLOTLY;
    script.onload = () => resolve(globalThis.Plotly);
    script.onerror = () => { loading = undefined; script.remove(); reject(new Error("Plotly could not be loaded")); };
    document.head.append(script);
  });
  return loading;
}

// losses: rows of columns, null where there is none; path: [row, column] in shares, the newest last;
// branch: where the newest preview began, or null.
export async function drawSurface(place, { losses, shares, path, branch, isLogarithmic }) {
  const drawing = await plotly();
  if (!place.isConnected) return;
  const style = getComputedStyle(document.documentElement);
  const [ink, line, accent] = ["--ink", "--line", "--accent"].map((name) => style.getPropertyValue(name).trim());
  const known = losses.flat().filter((loss) => loss !== null);
  const decades = isLogarithmic ? Math.log10(Math.max(...known)) - Math.log10(Math.min(...known)) : 0;
  const axis = (text, type) => ({ title: { text }, type, color: ink, gridcolor: line, zerolinecolor: line, showbackground: false });
  const colours = Array.from({ length: STOPS }, (_, n) => [n / (STOPS - 1), hex(VALUE_COLOURS[1 + Math.round((254 * n) / (STOPS - 1))])]);
  const height = (row, column) => losses[nearest(shares, row)][nearest(shares, column)];
  const branches = branch ? [branch] : [];
  const heights = path.map(([row, column]) => height(row, column));
  await drawing.react(
    place,
    [
      // By their logarithm, as the map is coloured, where all are above 0.
      { type: "surface", x: shares, y: shares, z: losses, opacity: 0.9, surfacecolor: isLogarithmic ? losses.map((row) => row.map((loss) => (loss === null ? null : Math.log(loss)))) : losses, colorscale: colours, showscale: false, hovertemplate: "loss %{z:.4~g}<extra></extra>" },
      { type: "scatter3d", mode: path.length > 1 ? "lines+markers" : "markers", x: path.map(([, column]) => column), y: path.map(([row]) => row), z: heights, line: { color: accent, width: 6 }, marker: { color: accent, size: path.map((_, n) => (n === path.length - 1 ? 7 : 4)), symbol: path.map((_, n) => (n === path.length - 1 ? "diamond" : "circle")) }, hovertemplate: "loss %{z:.4~g}<extra>the run's path</extra>" },
      { type: "scatter3d", mode: "markers", x: branches.map(([, column]) => column), y: branches.map(([row]) => row), z: branches.map((one) => height(...one)), marker: { color: ink, size: 10, symbol: "circle-open" }, hovertemplate: "loss %{z:.4~g}<extra>a preview began here</extra>" },
    ],
    {
      uirevision: "same", // keeps the view after an update
      showlegend: false,
      margin: { l: 0, r: 0, t: 0, b: 0 },
      paper_bgcolor: "transparent",
      font: { color: ink },
      scene: { xaxis: axis("columns"), yaxis: axis("rows"), zaxis: { ...axis("loss", isLogarithmic ? "log" : "linear"), ...(decades > DECADES && { dtick: Math.ceil(decades / MOST_DECADES) }) } },
    },
    BARE,
  );
}

// Draw nothing while no loss of the plane is known.
export function clearSurface(place) {
  globalThis.Plotly?.purge(place);
}

// Turn it by a key, and return whether the key is one of those.
export function turn(place, key) {
  const way = TURNS[key], eye = place._fullLayout?.scene?.camera?.eye;
  if (!way || !eye) return false;
  const far = Math.hypot(eye.x, eye.y, eye.z);
  const round = Math.atan2(eye.y, eye.x) + way[0] * TURN;
  const up = Math.max(-STEEPEST, Math.min(STEEPEST, Math.asin(eye.z / far) + way[1] * TURN));
  const flat = far * Math.cos(up);
  globalThis.Plotly.relayout(place, { "scene.camera.eye": { x: flat * Math.cos(round), y: flat * Math.sin(round), z: far * Math.sin(up) } });
  return true;
}

function nearest(shares, at) {
  const reach = shares.at(-1) || 1;
  return Math.max(0, Math.min(shares.length - 1, Math.round(((at / reach + 1) / 2) * (shares.length - 1))));
}

function hex(colour) {
  return `#${colour.match(/\d+/g).map((part) => Number(part).toString(16).padStart(2, "0")).join("")}`;
}
