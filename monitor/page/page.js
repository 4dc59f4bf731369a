// The live page: snapshots come as server-sent events, history is fetched now and then. Whatever comes from the server
// is set as text, never as markup.

import { Chart } from "./chart.js";
import { drawAgain, drawFailed } from "./failed.js";
import { drawHosts, drawLanes, setUpLanes } from "./lanes.js";
import { OVER, STATES, byId, make, more, part, table } from "./parts.js";
import { ago, clock, count, duration, moment, percent, rate, size, sizeRate } from "./words.js";

const HISTORY_MS = 5000;
const MARKS = { good: "✓ fine", warn: "▲ look", bad: "✕ bad", unknown: "– unknown" };
let snapshot = null;
// What a person chose, and what is shown: that, or else the run that the answers are about.
let picked = null;
let chosen = null;
let charts = null;
let historyRun = null;

// Of the run that is shown, whichever it is; the others are about the whole fleet.
function answersShown() {
  if (chosen === null || chosen === snapshot.main_run) return snapshot.answers;
  const place = snapshot.runs.findIndex((run) => run.run_id === chosen);
  return snapshot.answers.map((answer) => (answer.about === "done" && !snapshot.redis_error ? snapshot.when_done[place] ?? answer : answer));
}

function drawAnswers() {
  const shown = answersShown();
  part("answers", shown, (element, answers) => {
    element.replaceChildren(...answers.map((answer) => {
      const [mark, word] = MARKS[answer.verdict].split(" ");
      return make("li", { cls: answer.verdict }, make("p", { cls: "q", text: answer.question }),
        make("p", { cls: "b" }, make("span", { cls: "mark", text: mark, attrs: { "aria-hidden": "true" } }), make("span", { cls: "hidden", text: `${word}: ` }),
          make("span", { cls: "brief", text: answer.brief })),
        ...(answer.text === answer.brief ? [] : [make("p", { cls: "a", text: answer.text })]));
    }));
  });
  // Said aloud only when a verdict changes, not with every number.
  part("said", shown.map((answer) => answer.verdict), (element) => {
    const worse = shown.filter((answer) => answer.verdict === "bad" || answer.verdict === "warn");
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
  chosen = ids.includes(picked) ? picked : snapshot.main_run || null;
  part("run", [ids, chosen], (element) => {
    element.replaceChildren(...ids.map((id) => make("option", { text: id, attrs: { value: id } })));
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
  byId("run-model").textContent = run.model;
  byId("run-bar").value = run.done;
  byId("run-share").textContent = percent(run.done, 1);
  const left = run.remaining_seconds;
  const numbers = [
    number("Tokens", count(run.tokens), `of ${count(run.tokens_total)}`),
    number("Samples", count(run.samples), `of ${count(run.samples_total)}${run.set_aside ? `, ${count(run.set_aside)} of them set aside` : ""}`),
    number("Batches", count(run.batches), `of ${count(run.batches_total)}, ${size(run.size_bytes)} stored`),
    number("Fleet", `${rate(run.recent?.tokens_per_second ?? run.tokens_per_second)} tokens/s`, `${rate(run.samples_per_second)} samples/s since the start`),
    left === null ? number("Time left", run.state === "complete" ? "done" : "-")
      : number("Time left", `about ${duration(left)}`, `${duration(run.remaining_low_seconds)} to ${duration(run.remaining_high_seconds)}; done at about ${moment(snapshot.at + left, snapshot.at)}`),
    number("On the queue", `${count(run.queued)} queued`, `${count(run.started)} started, ${count(run.retrying)} to be tried again, ${count(run.failed)} failed`),
    ...(run.proved && snapshot.store ? [number("Report", `${run.run_id}/report.html`, "in the store, with report.json")] : []),
  ];
  part("run-numbers", numbers, (element) => {
    element.replaceChildren(...numbers.map(([term, text, more]) => make("div", { cls: text.length > 24 ? "long" : "" }, make("dt", { text: term }),
      make("dd", {}, text, ...(more ? [make("div", { cls: "more", text: more })] : [])))));
  });
  drawHosts(run);
  drawLanes(run, snapshot.processes);
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
  table("states", "Norms of tokens, without the first of each sample, and zeros: the most extreme so far", ["state", "smallest norm", "largest norm", "most zeros"],
    states.map((each) => [each.state, extreme(each.norm_low, each.norm_low.value.toPrecision(4)),
      extreme(each.norm_high, each.norm_high.value.toPrecision(4)), extreme(each.zero_share, `${(100 * each.zero_share.value).toFixed(2)}%`)]));
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
  const run = chooseRun();
  drawAnswers();
  drawRun(run);
  drawFailed(snapshot);
  drawAgain(snapshot);
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

setUpLanes(() => { if (snapshot) draw(); });
byId("run").addEventListener("change", (event) => {
  picked = event.target.value;
  if (snapshot) draw();
});
charts = makeCharts();
setUpTheme();
setUpControls();
setInterval(fetchHistory, HISTORY_MS);
listen();
