// Dead letters: their number, their reasons and, with the token, the contents of the first few.
//
// Rule: the contents of a record are untrusted. They are set as text, never as markup.

import { asked, mayAsk } from "./actions.js";
import { Section, Table } from "./parts.js";
import { bytes, clock, count } from "./text.js";
import { html, useEffect, useState } from "./vendor/htm-preact.js";

const note = "Records that could not be processed in this run. The dead letter topic of their source has each of them with its reason.";

export function Letters({ job }) {
  if (job.dead.length === 0) return null;
  return html`<${Section} title="Dead letters" note=${note}>
    <${Table} caption="Dead letters by source and operator" columns=${["source", "rejected by", "#records"]}
      rows=${job.dead.map((each) => [each.source, each.operator, count(each.count)])} />
    ${job.refused.length > 0 && (mayAsk() ? html`<${Inside} job=${job} />` : html`<${Reasons} refused=${job.refused} />`)}
    <p class="quiet">All of them, with key, value and headers: <code>kafka-eos dead-letters show APP</code></p>
  <//>`;
}

const Reasons = ({ refused }) => html`<details open><summary>The first few, with their reasons</summary>
  <ol class="happenings">${refused.map((each) => html`<li class="fault" key=${`${each.where} ${each.operator}`}>
    <span class="quiet">${each.operator}</span>
    <div><strong>${each.where}</strong><p>${each.reason}</p></div>
  </li>`)}</ol>
  <p class="quiet">Contents are shown only with the token that <code>kafka-eos ui</code> prints.</p></details>`;

function Inside({ job }) {
  const [told, setTold] = useState({ letters: [] });
  useEffect(() => {
    asked(job.job, "dead-letters").then(setTold, (error) => setTold({ letters: [], error: error.message }));
  }, [job.job, JSON.stringify(job.refused)]);
  return html`<details open><summary>The first few, with their contents</summary>
    ${told.error && html`<p class="why fault">${told.error}</p>`}
    <ol class="letters">${told.letters.map((each) => html`<li key=${`${each.where} ${each.operator}`}><${Letter} letter=${each} /></li>`)}</ol>
  </details>`;
}

const Letter = ({ letter }) => html`
  <h3>${letter.where}</h3>
  <p class="quiet">rejected by ${letter.operator}, source ${letter.source}, ${letter.timestamp === null ? "no timestamp" : clock(letter.timestamp)}</p>
  <p class="why fault lines">${letter.error}</p>
  <dl>
    <${Data} name="key" data=${letter.key} none="no key" />
    <${Data} name="value" data=${letter.value} none="no value (a tombstone)" />
    ${letter.headers.map((each) => html`<${Data} name=${`header ${each.name}`} data=${each.value} none="null" />`)}
  </dl>`;

function Data({ name, data, none }) {
  if (data === null) return html`<dt>${name}</dt><dd class="quiet">${none}</dd>`;
  const more = data.left_out > 0 ? `, showing the first ${bytes(data.size - data.left_out)}` : "";
  return html`<dt>${name} <span class="quiet">${bytes(data.size)}${data.hex === null ? "" : ", binary: in hex"}${more}</span></dt>
    <dd><pre tabindex="0">${data.text ?? data.hex}</pre></dd>`;
}
