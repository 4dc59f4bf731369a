// The live page: snapshots come as server-sent events, history is fetched now and then. Whatever comes from the server
// is set as text, never as markup.

import { Chart, svg } from "./chart.js";
import { ago, clock, count, duration, percent, rate, size, sizeRate } from "./words.js";

const HISTORY_MS = 5000;
// In a larger fleet those that need a look come first, and the others on demand; the monitor sends no more than can be read.
const FEW_LANES = 12;
const MOST_LANES = 48;
// So few workers need no overview.
const FEW_WORKERS = 8;
const LETTERS = { b: "busy", i: "idle", w: "waiting", s: "silent", g: "gone" };
const STAGES = ["read", "forward", "stall", "write"];
const MARKS = { good: "✓ fine", warn: "▲ look", bad: "✕ bad", unknown: "– unknown" };
const STATES = {
  busy: "good", idle: "warn", waiting: "warn", silent: "bad", gone: "warn",
  running: "good", uploading: "good", proving: "good", complete: "good", paused: "warn", stalled: "bad", cancelled: "warn",
};

const OVER = ["complete", "cancelled"];

const byId = (id) => document.getElementById(id);
const shown = new Map();
let snapshot = null;
let chosen = null;
let charts = null;
let historyRun = null;
let allLanes = false;

function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  if (options.cls) element.className = options.cls;
  if (options.text !== undefined) element.textContent = options.text;
  for (const [name, value] of Object.entries(options.attrs ?? {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Draws a part anew only if what it shows has changed, so that focus and selections stay.
function part(id, value, draw) {
  const key = JSON.stringify(value);
  if (shown.get(id) === key) return;
  shown.set(id, key);
  draw(byId(id), value);
}

function table(id, caption, head, rows) {
  part(id, [caption, head, rows], (element) => {
    const top = make("tr", {}, ...head.map((cell) => make("th", { text: cell, cls: cell === "waits for" ? "long" : "", attrs: { scope: "col" } })));
    const body = rows.map((row) => make("tr", {}, ...row.map((cell) => (cell instanceof Object
      ? make("td", { cls: cell.cls }, ...(cell.chip ? [make("span", { cls: `chip ${cell.verdict}`, text: cell.chip })] : [cell.text]))
      : make("td", { text: cell })))));
    element.replaceChildren(make("caption", { text: caption }), make("thead", {}, top), make("tbody", {}, ...body));
  });
}

function more(number) {
  return number ? `; and ${count(number)} more` : "";
}

function drawAnswers() {
  part("answers", snapshot.answers, (element, answers) => {
    element.replaceChildren(...answers.map((answer) => make("li", { cls: answer.verdict },
      make("p", { cls: "q" }, make("span", { text: answer.question }), make("span", { cls: "mark", text: MARKS[answer.verdict] })),
      make("p", { cls: "a", text: answer.text }))));
  });
  // Said aloud only when a verdict changes, not with every number.
  part("said", snapshot.answers.map((answer) => answer.verdict), (element) => {
    const worse = snapshot.answers.filter((answer) => answer.verdict === "bad" || answer.verdict === "warn");
    element.textContent = worse.length ? worse.map((answer) => `${answer.question} ${answer.text}`).join(". ") : "All is well.";
  });
  byId("problems").hidden = snapshot.problems.length < 2;
  part("problems", snapshot.problems, (element, problems) => {
    element.querySelector("ul").replaceChildren(...problems.map((problem) => make("li", { text: problem })));
  });
}

function chooseRun() {
  const runs = snapshot.runs;
  const ids = runs.map((run) => run.run_id);
  byId("choose").hidden = ids.length < 2;
  part("run", ids, (element) => {
    element.replaceChildren(...ids.map((id) => make("option", { text: id, attrs: { value: id } })));
    if (!ids.includes(chosen)) {
      const going = runs.find((run) => !OVER.includes(run.state)) ?? runs[runs.length - 1];
      chosen = going?.run_id ?? null;
    }
    element.value = chosen ?? "";
  });
  return runs.find((run) => run.run_id === chosen) ?? null;
}

function number(term, text, more = "") {
  return [term, text, more];
}

function drawRun(run) {
  byId("run-section").hidden = run === null;
  document.title = run === null ? "hiddenfeed" : `${percent(run.done)} ${run.state}: ${run.run_id}`;
  if (run === null) return;
  part("run-name", run.run_id, (element, text) => { element.textContent = text; });
  part("run-state", [run.state, run.proved], (element) => {
    element.textContent = run.proved ? `${run.state}, proved` : run.state;
    element.className = `chip ${STATES[run.state] ?? ""}`;
  });
  byId("run-bar").value = run.done;
  byId("run-share").textContent = percent(run.done, 1);
  const left = run.remaining_seconds;
  const numbers = [
    number("Tokens", count(run.tokens), `of ${count(run.tokens_total)}`),
    number("Samples", count(run.samples), `of ${count(run.samples_total)}${run.set_aside ? `, ${count(run.set_aside)} of them set aside` : ""}`),
    number("Batches", count(run.batches), `of ${count(run.batches_total)}, ${size(run.size_bytes)} stored`),
    number("Fleet", `${rate(run.recent?.tokens_per_second ?? run.tokens_per_second)} tokens/s`, `${rate(run.samples_per_second)} samples/s since the start`),
    left === null ? number("Time left", run.state === "complete" ? "done" : "-")
      : number("Time left", `about ${duration(left)}`, `${duration(run.remaining_low_seconds)} to ${duration(run.remaining_high_seconds)}; done at about ${clock(snapshot.at + left)}`),
    number("On the queue", `${count(run.queued)} queued, ${count(run.started)} started`, `${count(run.retrying)} to be tried again, ${count(run.failed)} failed`),
    number("Model", run.model),
    ...(run.proved && snapshot.store ? [number("Report", `${run.run_id}/report.html`, "in the store, with report.json")] : []),
  ];
  part("run-numbers", numbers, (element) => {
    element.replaceChildren(...numbers.map(([term, text, more]) => make("div", { cls: text.length > 24 ? "long" : "" }, make("dt", { text: term }),
      make("dd", {}, text, ...(more ? [make("div", { cls: "more", text: more })] : [])))));
  });
  drawHosts(run);
  drawLanes(run);
  drawChecks(run);
  table("uploaders", `Over the clock, and of one file on its way${more(run.more_uploaders)}`, ["uploader", "files", "size", "rate", "each file", "duplicates", "last"],
    run.uploaders.map((each) => [each.uploader, count(each.files), size(each.size_bytes), sizeRate(each.bytes_per_second),
      sizeRate(each.transfer_bytes_per_second), count(each.duplicates), ago(each.last_seconds_ago)]));
}

function extreme(found, text) {
  return `${text} in batch ${count(found.batch)}`;
}

function drawChecks(run) {
  part("findings", run.findings, (element, findings) => {
    element.replaceChildren(...findings.map((finding) => make("li", { cls: finding.verdict },
      make("span", { cls: `chip ${finding.verdict}`, text: MARKS[finding.verdict] }), " ", finding.text)));
  });
  const { states } = run.checks;
  byId("states-part").hidden = !states.length;
  table("states", "Norms of tokens and zeros, the most extreme so far", ["state", "smallest norm", "largest norm", "most zeros"],
    states.map((each) => [each.state, extreme(each.norm_low, each.norm_low.value.toPrecision(4)),
      extreme(each.norm_high, each.norm_high.value.toPrecision(4)), extreme(each.zero_share, `${(100 * each.zero_share.value).toFixed(2)}%`)]));
}

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
function drawHosts(run) {
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
    }), ...(more ? [make("li", { text: `and ${count(more)} more hosts` })] : []));
  });
}

function drawLanes(run) {
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
    ...worker, heard: snapshot.processes.find((process) => process.name === worker.worker),
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
        make("div", { cls: "facts", text: worker.batches === 0 ? "none of its batches is stored yet" : `${rate(worker.tokens_per_second)} tokens/s, ${rate(worker.samples_per_second)} samples/s, ${count(worker.batches)} batches, `
          + `computing ${percent(worker.busy)}, padding ${percent(worker.padding, 1)}, last ${ago(worker.last_seconds_ago)}` }));
    }));
    if (hidden) element.append(make("li", { cls: "more", text: `and ${count(hidden)} more` }));
    if (!lanes.length) element.replaceChildren(make("li", { text: "No GPU worker has worked on this run yet." }));
  });
}

// As `7-9, 12`.
function spans(numbers) {
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

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Without a secure context there is no clipboard: select it, so that Ctrl-C does.
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected: press Ctrl-C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 3000);
}

// Those with one reason and one way out stand together.
function grouped(failures) {
  const groups = new Map();
  for (const each of failures) {
    const key = JSON.stringify([each.command, each.error]);
    groups.set(key, [...(groups.get(key) ?? []), each]);
  }
  return [...groups.values()].map((group) => ({
    what: group.length === 1 ? group[0].description || group[0].job_id
      : `${count(group.length)} of ${group[0].from}: ${spans(group.map((each) => Number(each.job_id.slice(each.job_id.lastIndexOf("-") + 1))))}`,
    why: group[0].error, command: group[0].command,
  }));
}

function drawFailed() {
  const failures = [
    ...snapshot.runs.flatMap((run) => run.failures.map((each) => ({ ...each, from: `the batches of ${run.run_id}`, command: `python -m producer retry-failed ${run.run_id}` }))),
    ...snapshot.uploads.flatMap((queue) => queue.failures.map((each) => ({ ...each, from: `the files of ${queue.name}`, command: `python -m producer retry-failed ${each.job_id.replace(/^upload-|-\d+$/g, "")}` }))),
  ];
  const all = [...snapshot.runs, ...snapshot.uploads].reduce((sum, each) => sum + each.failed, 0);
  byId("failed-section").hidden = !failures.length;
  byId("failed-more").hidden = all <= failures.length;
  byId("failed-more").textContent = `The newest ${count(failures.length)} of ${count(all)}.`;
  part("failed", grouped(failures), (element, groups) => {
    element.replaceChildren(...groups.map((each) => {
      const button = make("button", { text: "Copy", cls: "quiet", attrs: { type: "button", "aria-label": `Copy the command that tries ${each.what} again` } });
      button.addEventListener("click", () => copy(button, each.command));
      return make("li", {}, make("p", { cls: "what", text: each.what }), make("p", { cls: "why", text: each.why || "no reason is known" }),
        make("p", { cls: "command" }, make("code", { text: each.command }), button));
    }));
  });
}

// An uploader without files has nothing to do; a GPU worker without a batch may be missed.
function processVerdict(process) {
  return process.state === "idle" && process.role !== "gpu_worker" ? "" : STATES[process.state] ?? "";
}

function drawHost() {
  // What is not known is not shown as nothing.
  byId("host-section").hidden = snapshot.redis_error !== "";
  byId("empty").hidden = snapshot.runs.length > 0 || snapshot.redis_error !== "";
  byId("nobody").hidden = snapshot.processes.length > 0;
  byId("queues-part").hidden = !snapshot.uploads.length;
  byId("processes-part").hidden = !snapshot.processes.length;
  table("queues", `Files on their way${more(snapshot.more_uploads)}`, ["upload queue", "queued", "on their way", "to be tried again", "failed"],
    snapshot.uploads.map((queue) => [queue.name, count(queue.queued), count(queue.started), count(queue.retrying), count(queue.failed)]));
  table("processes", `Processes that take jobs${more(snapshot.more_processes)}`, ["process", "state", "jobs", "slots", "done", "failed", "heard of", "waits for"],
    snapshot.processes.map((each) => [each.name, { chip: each.state, verdict: processVerdict(each) }, count(each.running), count(each.slots), count(each.finished),
      count(each.failed), ago(each.heartbeat_seconds_ago), { cls: "long", text: each.waits_for }]));
}

async function fetchHistory() {
  if (chosen === null) return;
  const run = chosen;
  try {
    const reply = await fetch(`history.json?run=${encodeURIComponent(run)}`);
    if (!reply.ok) return;
    const rows = await reply.json();
    if (run !== chosen) return;
    historyRun = run;
    charts.rates.show(rows);
    charts.backlog.show(rows);
    charts.spool.show(rows);
  } catch {
    // The link's own words say that the monitor is away.
  }
}

function makeCharts() {
  const nothing = "Nothing to draw yet: the first points come within half a minute.";
  return {
    rates: new Chart(byId("chart-rates"), {
      title: "Extraction and upload", binary: true, say: sizeRate, nothing,
      series: [{ name: "extracted", key: "extract_bytes_per_second", kind: "c0" }, { name: "stored", key: "upload_bytes_per_second", kind: "c1" }],
    }),
    backlog: new Chart(byId("chart-backlog"), {
      title: "Files waiting for upload", binary: false, say: (value) => count(Math.round(value)), nothing,
      series: [{ name: "files", key: "backlog", kind: "c0" }],
    }),
    spool: new Chart(byId("chart-spool"), {
      title: "Spool", binary: true, say: size, nothing: "No spool on the monitor's host, or no points yet.",
      series: [{ name: "used", key: "spool_bytes", kind: "c0" }, { name: "cap", key: "spool_cap_bytes", kind: "c2" }],
    }),
  };
}

function draw() {
  byId("where").textContent = `${clock(snapshot.at, true)}${snapshot.store ? `, store ${snapshot.store}` : ""}`;
  drawAnswers();
  const run = chooseRun();
  drawRun(run);
  drawFailed();
  drawHost();
  byId("pause-row").hidden = run === null || OVER.includes(run.state);
  byId("pause").disabled = run?.state === "paused";
  byId("resume").disabled = run?.state !== "paused";
  if (run !== null && historyRun !== run.run_id) fetchHistory();
}

function listen() {
  const source = new EventSource("events");
  source.addEventListener("snapshot", (event) => {
    snapshot = JSON.parse(event.data);
    byId("plain").hidden = true;
    byId("app").hidden = false;
    byId("link").hidden = true;
    draw();
  });
  source.addEventListener("error", () => {
    byId("link").hidden = false;
    byId("link").textContent = "The monitor does not answer; what is shown is old. Trying again.";
    // The browser tries again by itself, unless the answer was an error.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  });
}

function setUpTheme() {
  const button = byId("theme");
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  try { root.dataset.theme = localStorage.getItem("theme") ?? ""; } catch { /* not allowed to remember */ }
  if (!root.dataset.theme) delete root.dataset.theme;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* not allowed to remember */ }
    name();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  button.hidden = false;
  name();
}

async function change(body) {
  const answer = byId("control-answer");
  if (!byId("token").reportValidity()) return;
  const reply = await fetch("control", {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${byId("token").value}` },
    body: JSON.stringify(body),
  }).catch(() => null);
  const said = reply ? await reply.json().catch(() => ({})) : {};
  answer.textContent = said.message ?? "The monitor does not answer.";
}

async function setUpControls() {
  const reply = await fetch("controls.json").catch(() => null);
  if (!reply?.ok) return;
  const controls = await reply.json();
  const dashboard = controls.dashboard_url || `${location.protocol}//${location.hostname}:${controls.dashboard_port}/`;
  byId("links").prepend(make("a", { text: "rq-dashboard", attrs: { href: dashboard } }));
  byId("controls").hidden = false;
  byId("controls-off").hidden = controls.enabled;
  byId("controls-form").hidden = !controls.enabled;
  const select = byId("setting");
  select.append(...controls.settings.map((each) => make("option", { text: each.name, attrs: { value: each.name } })));
  const help = () => {
    const setting = controls.settings.find((each) => each.name === select.value);
    const now = snapshot?.live?.[setting.name];
    byId("setting-help").textContent = `${setting.help}${setting.unit ? `, in ${setting.unit}` : ""}. ${now === undefined ? "Each process uses its own value now." : `Set to ${now} for the whole fleet.`}`;
  };
  select.addEventListener("change", help);
  help();
  for (const id of ["pause", "resume"]) byId(id).addEventListener("click", () => change({ action: id, run: chosen }));
  byId("controls-form").addEventListener("submit", (event) => {
    event.preventDefault();
    change({ action: "set", name: select.value, value: byId("value").value }).then(() => setTimeout(help, 1500));
  });
  byId("clear").addEventListener("click", () => change({ action: "clear", name: select.value }).then(() => setTimeout(help, 1500)));
}

byId("stage-legend").append("Where the time of a worker's batches goes:", ...STAGES.map((stage) => {
  const box = svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
  box.append(svg("rect", { width: 10, height: 10, rx: 2, class: `s-${stage}` }));
  return make("span", {}, box, ` ${stage}`);
}));
byId("lanes-all").addEventListener("click", () => {
  allLanes = !allLanes;
  if (snapshot) draw();
});
byId("run").addEventListener("change", (event) => {
  chosen = event.target.value;
  if (snapshot) draw();
});
charts = makeCharts();
setUpTheme();
setUpControls();
setInterval(fetchHistory, HISTORY_MS);
listen();
