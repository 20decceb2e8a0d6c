// Epochs as bars with one part per phase, and failures between the bars.

import { html } from "./vendor/htm-preact.js";
import { clock, count, span } from "./text.js";

export const PHASES = [
  ["align", "alignment"],
  ["snapshot", "snapshot"],
  ["store", "upload (asynchronous)"],
  ["commit", "commit"],
];
const TALL = 132, HEAD = 16, FOOT = 18, WORD = 44;
const total = (epoch) => PHASES.reduce((sum, [name]) => sum + (epoch[name] ?? 0), 0);

// The upper end of the axis. A few very long epochs must not flatten the bars of the others.
function reach(totals) {
  const sorted = [...totals].sort((a, b) => a - b);
  return ceiling(Math.max(1, Math.min(sorted.at(-1), 8 * sorted[Math.floor(sorted.length / 2)])));
}

// A round number of milliseconds at or above the longest bar.
function ceiling(longest) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, longest)));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= longest);
}

// The bars beyond the axis that show their duration: the longest first, as far as the labels fit.
function labeled(totals, limit, apart) {
  const found = [];
  const beyond = totals.map((ms, i) => [ms, i]).filter(([ms]) => ms > limit).sort(([a], [b]) => b - a);
  for (const [, i] of beyond) if (found.every((other) => Math.abs(other - i) >= apart)) found.push(i);
  return new Set(found);
}

function Bar({ epoch, x, width, scale, says }) {
  let top = TALL;
  const text = epoch.aborted ? "aborted" : `${span(total(epoch))}, ${count(epoch.records)} records`;
  return html`<g>
    <title>epoch ${epoch.epoch} at ${clock(epoch.decided_at)}: ${text}${epoch.aborted || epoch.committed_at ? "" : ", not committed"}</title>
    <rect x=${x} y="0" width=${width} height=${TALL} class="hit" />
    ${epoch.aborted
      ? html`<rect x=${x} y=${TALL - 8} width=${width} height="8" class="aborted" />`
      : PHASES.map(([name]) => {
          const height = Math.min(top, (epoch[name] ?? 0) * scale);
          top -= height;
          return html`<rect x=${x} y=${top} width=${width} height=${height} class=${`phase-${name}`} />`;
        })}
    ${says && html`<text x=${x + width / 2} y="-4" class="beyond">${span(total(epoch))}</text>`}
  </g>`;
}

// The position of a failure between bars: the index of the first epoch decided after it.
const place = (epochs, at) => {
  const index = epochs.findIndex((epoch) => epoch.decided_at > at);
  return index < 0 ? epochs.length : index;
};

export function Timeline({ epochs, faults, room }) {
  const shown = epochs.slice(-Math.max(8, Math.floor((room - 56) / 12)));
  const totals = shown.map(total), most = reach(totals), scale = (TALL - 2) / most;
  const step = Math.min(22, (room - 56) / shown.length), width = Math.max(2, step - 3);
  const says = labeled(totals, TALL / scale, Math.ceil(WORD / step));
  const since = shown[0]?.decided_at ?? 0;
  const cuts = faults.filter((each) => each.at !== null && each.at >= since);
  const end = 52 + shown.length * step;
  return html`<svg class="timeline" width=${room} height=${HEAD + TALL + FOOT} viewBox=${`0 ${-HEAD} ${room} ${HEAD + TALL + FOOT}`} aria-hidden="true">
    ${[0, 0.5, 1].map((part) => html`<line x1="48" x2=${room} y1=${TALL * (1 - part) + 0.5} y2=${TALL * (1 - part) + 0.5} class="rule" />
      <text x="44" y=${Math.max(10, TALL * (1 - part))} class="tick">${span(most * part).replace("0.0 ms", "0")}</text>`)}
    ${shown.map((epoch, i) => html`<${Bar} epoch=${epoch} x=${52 + i * step} width=${width} scale=${scale} says=${says.has(i)} />`)}
    ${cuts.map((each) => {
      const x = 52 + place(shown, each.at) * step - 2;
      return html`<g class="cut"><title>${clock(each.at)}: ${each.title}. ${each.text}</title><line x1=${x} x2=${x} y1="0" y2=${TALL} /><path d=${`M${x - 5} 0h10l-5 8z`} /></g>`;
    })}
    ${shown.length > 0 && html`<text x="52" y=${TALL + 14} class="foot">epoch ${shown[0].epoch}</text>
      ${shown.length > 8 && html`<text x=${end} y=${TALL + 14} class="foot last">${shown.at(-1).epoch}</text>`}`}
  </svg>`;
}
