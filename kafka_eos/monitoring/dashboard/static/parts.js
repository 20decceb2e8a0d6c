// Components that several sections use.

import { html } from "./vendor/htm-preact.js";

const SIGNS = { running: "▶", starting: "…", recovering: "↻", stopped: "■", failed: "✕", killed: "✕", unresponsive: "✕" };

export const State = ({ state }) => html`<span class=${`state ${state}`}><span aria-hidden="true">${SIGNS[state]}</span> ${state}</span>`;

export const Section = ({ title, note, children }) => html`<section class="card" aria-label=${title}>
  <h2>${title}</h2>
  ${note && html`<p class="quiet">${note}</p>`}
  ${children}
</section>`;

export const Tile = ({ name, value, note, alarm }) => html`<div class=${`tile ${alarm ? "alarm" : ""}`}>
  <dt>${name}</dt><dd>${value}</dd>${note && html`<dd class="quiet">${note}</dd>`}
</div>`;

// Text that may wrap after underscores, slashes, commas and dots.
export const breakable = (text) => String(text).split(/(?<=[_/,.:])/).map((part, i) => html`${i > 0 && html`<wbr />`}${part}`);

// `columns` are headings; a heading that begins with # marks a column of numbers. `rows` are lists of cells. `wraps`: cells wrap instead of scrolling.
export const Table = ({ caption, columns, rows, wraps }) => html`<div class=${wraps ? "wraps" : "scroll"} tabindex="0" role="region" aria-label=${caption}>
  <table>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map((each) => html`<th scope="col" class=${each.startsWith("#") ? "number" : ""}>${each.replace("#", "")}</th>`)}</tr></thead>
    <tbody>${rows.map((cells) => html`<tr>${cells.map((cell, i) => i === 0
      ? html`<th scope="row">${cell}</th>`
      : html`<td class=${columns[i].startsWith("#") ? "number" : ""}>${cell}</td>`)}</tr>`)}</tbody>
  </table>
</div>`;
