// Pieces that several sections are made of.

import { html } from "./vendor/htm-preact.js";

const SIGNS = { running: "▶", starting: "…", recovering: "↻", stopped: "■", failed: "✕", killed: "✕" };

export const State = ({ how }) => html`<span class=${`state ${how}`}><span aria-hidden="true">${SIGNS[how]}</span> ${how}</span>`;

export const Section = ({ title, note, children }) => html`<section class="card" aria-label=${title}>
  <h2>${title}</h2>
  ${note && html`<p class="quiet">${note}</p>`}
  ${children}
</section>`;

export const Tile = ({ name, value, note, alarm }) => html`<div class=${`tile ${alarm ? "alarm" : ""}`}>
  <dt>${name}</dt><dd>${value}</dd>${note && html`<dd class="quiet">${note}</dd>`}
</div>`;

// Text that may go on in the next line behind its underscores, slashes, commas and dots.
export const breakable = (text) => String(text).split(/(?<=[_/,.:])/).map((part, i) => html`${i > 0 && html`<wbr />`}${part}`);

// `columns` are headings; one that begins with # is of numbers. `rows` are lists of cells. `wraps`: nothing is scrolled for.
export const Table = ({ caption, columns, rows, wraps }) => html`<div class=${wraps ? "wraps" : "scroll"} tabindex="0" role="region" aria-label=${caption}>
  <table>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map((each) => html`<th scope="col" class=${each.startsWith("#") ? "number" : ""}>${each.replace("#", "")}</th>`)}</tr></thead>
    <tbody>${rows.map((cells) => html`<tr>${cells.map((cell, i) => i === 0
      ? html`<th scope="row">${cell}</th>`
      : html`<td class=${columns[i].startsWith("#") ? "number" : ""}>${cell}</td>`)}</tr>`)}</tbody>
  </table>
</div>`;
