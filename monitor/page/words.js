// Numbers as people read them: the same words as hiddenfeed/words.py.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function size(bytes) {
  let unit = 0;
  let value = bytes;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) { value /= 1024; unit += 1; }
  return unit === 0 ? `${value.toFixed(0)} B` : `${value.toFixed(1)} ${UNITS[unit]}`;
}

export function sizeRate(perSecond) {
  return perSecond === null || perSecond === undefined ? "-" : `${size(perSecond)}/s`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  const whole = Math.max(0, Math.round(seconds));
  const two = (number) => String(number).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

export function count(number) {
  return number.toLocaleString("en-US");
}

// `1 file`, `2,000 files`; `many` is `one` with an s when not given.
export function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "-";
  return perSecond >= 10 ? count(Math.round(perSecond)) : perSecond.toFixed(1);
}

export function percent(share, digits = 0) {
  if (share === null || share === undefined) return "-";
  // Never 100% before the end.
  return `${(share < 1 ? Math.min(share * 100, 100 - 10 ** -digits) : 100).toFixed(digits)}%`;
}

export function ago(seconds) {
  return seconds === null || seconds === undefined ? "never" : `${duration(seconds)} ago`;
}

export function clock(at, withSeconds = false) {
  return new Date(at * 1000).toLocaleTimeString([], withSeconds
    ? { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" } : { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
}

// With its day where that is not today: a run of hours ends tomorrow as likely as not.
export function moment(at, now) {
  const [then, today] = [new Date(at * 1000), new Date(now * 1000)];
  const day = then.toDateString() === today.toDateString() ? "" : `${then.toLocaleDateString([], { weekday: "short", day: "numeric", month: "short" })}, `;
  return `${day}${clock(at)}`;
}
