// Numbers and times for display. Rule: an unknown value is shown as a dash.

const DASH = "–";
const known = (value) => value !== null && value !== undefined;

export const count = (n) => (known(n) ? Math.round(n).toLocaleString("en") : DASH);

export function rate(n) {
  if (!known(n)) return DASH;
  const digits = n > 0 && n < 10 ? 1 : 0;
  return `${n.toLocaleString("en", { maximumFractionDigits: digits })}/s`;
}

export const share = (n) => (known(n) ? `${Math.round(Math.min(1, Math.max(0, n)) * 100)} %` : DASH);

export function bytes(n) {
  if (!known(n)) return DASH;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = n < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(n) / 3));
  return `${(n / 1000 ** power).toLocaleString("en", { maximumSignificantDigits: 3 })} ${units[power]}`;
}

export function span(ms) {
  if (!known(ms)) return DASH;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.round((s % 86400) / 3600)} h`;
}

export const ago = (at, now) => (known(at) ? `${span(Math.max(0, Math.round((now - at) / 1000) * 1000)).replace("0.0 ms", "0 s").replace(".0 s", " s")} ago` : DASH);

export function clock(at) {
  if (!known(at)) return DASH;
  const date = new Date(at);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}
