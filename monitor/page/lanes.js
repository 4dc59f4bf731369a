// GPU workers: a square for each, host by host, and a lane for those that fit, those that need a look first.

import { svg } from "./chart.js";
import { OVER, STATES, byId, make, part } from "./parts.js";
import { ago, count, counted, duration, percent, rate } from "./words.js";

// In a larger fleet those that need a look come first, and the others on demand; the monitor sends no more than can be read.
const FEW_LANES = 12;
const MOST_LANES = 48;
// So few workers need no overview.
const FEW_WORKERS = 8;
const LETTERS = { b: "busy", i: "idle", w: "waiting", s: "silent", g: "gone" };
const STAGES = ["read", "forward", "stall", "write"];

let allLanes = false;

function stageBar(worker) {
  const picture = svg("svg", { class: "stages", viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img" });
  let x = 0;
  for (const stage of STAGES) {
    const width = 1000 * (worker.stages[stage] ?? 0);
    picture.append(svg("rect", { x, y: 0, width, height: 10, class: `s-${stage}` }));
    x += width;
  }
  const words = STAGES.map((stage) => `${stage} ${percent(worker.stages[stage] ?? 0)}`).join(", ");
  picture.setAttribute("aria-label", `Time of its batches: ${words}`);
  picture.append(svg("title", {}, words));
  return picture;
}

// A square for each worker, host by host; what is wrong has another shape as well as another colour.
export function drawHosts(run) {
  const whole = run.hosts.reduce((sum, host) => sum + host.states.length, 0);
  byId("hosts").hidden = whole <= FEW_WORKERS;
  part("hosts", [run.hosts, whole <= FEW_WORKERS, run.more_hosts], (element, [hosts, few, more]) => {
    element.replaceChildren(...(few ? [] : hosts).map(({ host, states }) => {
      const picture = svg("svg", { viewBox: `0 0 ${states.length * 12} 12`, width: states.length * 12, height: 12, "aria-hidden": "true" });
      [...states].forEach((letter, index) => {
        const x = index * 12;
        const verdict = STATES[LETTERS[letter]] ?? "";
        if (verdict === "bad") picture.append(svg("path", { d: `M${x + 1} 1l9 9m0 -9l-9 9`, class: "cell bad" }));
        else picture.append(svg("rect", { x: x + 1, y: verdict === "good" ? 1 : 5, width: 9, height: verdict === "good" ? 9 : 5, rx: 1.5, class: `cell ${verdict}` }));
      });
      const counts = Object.entries(LETTERS).map(([letter, name]) => [name, [...states].filter((each) => each === letter).length]).filter(([, number]) => number);
      const words = counts.map(([name, number]) => `${count(number)} ${name}`).join(", ");
      const wrong = counts.filter(([name]) => name !== "busy").map(([name, number]) => `${count(number)} ${name}`).join(", ");
      return make("li", { attrs: { title: `${host}: ${words}` } }, make("span", { cls: "host", text: host }), picture,
        make("span", { cls: "hidden", text: `: ${words}` }), ...(wrong ? [make("span", { cls: "why", text: wrong, attrs: { "aria-hidden": "true" } })] : []));
    }), ...(more ? [make("li", { text: `and ${counted(more, "more host")}` })] : []));
  });
}

export function drawLanes(run, processes) {
  const over = OVER.includes(run.state);
  // Of workers that are gone only those are shown that nobody has replaced for long.
  const workers = run.workers.filter((worker) => worker.state !== "gone" || (worker.last_seconds_ago ?? 1e9) < 3600);
  const most = allLanes ? MOST_LANES : FEW_LANES;
  const ordered = workers.length > most ? [...workers].sort((one, other) => (one.state === "busy") - (other.state === "busy")) : workers;
  const whole = workers.length + run.more_workers;
  byId("lanes-all").hidden = workers.length <= FEW_LANES;
  byId("lanes-all").textContent = allLanes ? `Show ${FEW_LANES}` : `Show ${count(Math.min(MOST_LANES, workers.length))} of ${count(whole)}`;
  byId("lanes-all").setAttribute("aria-expanded", allLanes);
  const hidden = whole - Math.min(most, workers.length);
  const lanes = ordered.slice(0, most).map((worker) => ({
    ...worker, heard: processes.find((process) => process.name === worker.worker),
  }));
  part("lanes", [lanes, hidden], (element) => {
    element.replaceChildren(...lanes.map((worker) => {
      // Whoever is gone when all is done has done its work.
      const verdict = over && worker.state !== "silent" ? "" : STATES[worker.state] ?? "";
      const current = spans(worker.current.map((job) => Number(job.slice(job.lastIndexOf("-") + 1))));
      const state = make("span", { cls: `chip ${verdict}`, text: worker.state });
      const why = worker.heard?.waits_for || (worker.state === "silent" ? `not heard of for ${duration(worker.heard?.heartbeat_seconds_ago)}` : "");
      return make("li", { cls: verdict, attrs: { "data-worker": worker.worker, "data-state": worker.state } },
        make("div", {}, make("span", { cls: "name", text: shortName(worker.worker), attrs: { title: worker.worker } }), " ", state,
          make("div", { cls: "facts", text: [worker.device, worker.kind, why, current ? `batch ${current}` : ""].filter(Boolean).join(" · ") })),
        make("div", {}, stageBar(worker)),
        make("div", { cls: "facts", text: worker.batches === 0 ? "none of its batches is stored yet" : `${rate(worker.tokens_per_second)} tokens/s, ${rate(worker.samples_per_second)} samples/s, ${counted(worker.batches, "batch", "batches")}, `
          + `computing ${percent(worker.busy)}, padding ${percent(worker.padding, 1)}, last ${ago(worker.last_seconds_ago)}` }));
    }));
    if (hidden) element.append(make("li", { cls: "more", text: `and ${count(hidden)} more` }));
    if (!lanes.length) element.replaceChildren(make("li", { text: "No GPU worker has worked on this run yet." }));
  });
}

// As `7-9, 12`.
export function spans(numbers) {
  const runs = [];
  for (const number of [...numbers].sort((one, other) => one - other)) {
    const last = runs[runs.length - 1];
    if (last && number === last[1] + 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");
}

// Where the heading says what they are.
function shortName(worker) {
  return worker.replace(/^gpu_worker-(?=.)/, "");
}

// `redraw` is called when more lanes are asked for, or fewer.
export function setUpLanes(redraw) {
  byId("stage-legend").append("Where the time of a worker's batches goes:", ...STAGES.map((stage) => {
    const box = svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
    box.append(svg("rect", { width: 10, height: 10, rx: 2, class: `s-${stage}` }));
    return make("span", {}, box, ` ${stage}`);
  }));
  byId("lanes-all").addEventListener("click", () => {
    allLanes = !allLanes;
    redraw();
  });
}
