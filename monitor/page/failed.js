// Jobs that failed, with their reasons and what tries them again, and those that are tried again by themselves.

import { spans } from "./lanes.js";
import { byId, make, part } from "./parts.js";
import { count } from "./words.js";

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

export function drawFailed(snapshot) {
  const failures = [
    ...snapshot.runs.flatMap((run) => run.failures.map((each) => ({ ...each, from: `the batches of ${run.run_id}` }))),
    ...snapshot.uploads.flatMap((queue) => queue.failures.map((each) => ({ ...each, from: `the files of ${queue.name}` }))),
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
        each.command ? make("p", { cls: "command" }, make("code", { text: each.command }), button)
          : make("p", { cls: "why", text: "No command: no run of ours has such a name, so another program put it there." }));
    }));
  });
}

// What went wrong and will be tried again without anybody: nothing to do, but good to know.
export function drawAgain(snapshot) {
  const retries = [...snapshot.runs, ...snapshot.uploads].flatMap((each) => each.retries);
  byId("again-section").hidden = !retries.length;
  part("again", retries, (element) => {
    element.replaceChildren(...retries.map((each) => make("li", {}, make("p", { cls: "what", text: each.description || each.job_id }),
      make("p", { cls: "why", text: each.error || "no reason is known" }))));
  });
}
