// Actions on a running job, for pages that were opened with the token.

import { html, useState } from "./vendor/htm-preact.js";

const KEY = "token";

// Move the token from the address into this tab, so that it is neither visible nor bookmarked.
export function keepToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get(KEY);
  if (given === null) return;
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
}

async function ask(job, what) {
  const headers = { "Kafka-Eos-Token": sessionStorage.getItem(KEY) };
  const answer = await fetch(`/api/jobs/${encodeURIComponent(job)}/${what}`, { method: "POST", headers });
  const told = await answer.json();
  if (told.error !== undefined) return { fault: true, text: told.error };
  return { fault: false, text: what === "stop" ? "The job has committed its last checkpoint and stops." : `Savepoint of epoch ${told.epoch}: ${told.path}` };
}

// Data served only with the token.
export async function asked(job, what) {
  const answer = await fetch(`/api/jobs/${encodeURIComponent(job)}/${what}`, {
    headers: { "Kafka-Eos-Token": sessionStorage.getItem(KEY) },
  });
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer.json();
}

export const mayAsk = () => sessionStorage.getItem(KEY) !== null;

// A link cannot send the token in a header, so the whole file is fetched and then saved.
export function Download({ job, name }) {
  const [said, setSaid] = useState("Download");
  const save = async () => {
    setSaid("Downloading …");
    const answer = await fetch(`/api/jobs/${encodeURIComponent(job)}/savepoints/${encodeURIComponent(name)}`, {
      headers: { "Kafka-Eos-Token": sessionStorage.getItem(KEY) },
    });
    if (!answer.ok) throw new Error((await answer.json()).error);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = `${job}-${name}.tar`;
    link.click();
    URL.revokeObjectURL(link.href);
    setSaid("Downloaded");
  };
  return html`<button aria-label=${`Download savepoint ${name}`} disabled=${said === "Downloading …"}
    onClick=${() => save().catch((error) => setSaid(`Not downloaded: ${error.message}`))}>${said}</button>`;
}

export function Actions({ job }) {
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState(null);
  if (!mayAsk() || (job.pid === null && said === null)) return null;
  const run = async (what, begun) => {
    setBusy(true);
    setSaid({ fault: false, text: begun });
    const lost = () => ({ fault: true, text: "The dashboard did not respond. See the events below." });
    setSaid(await ask(job.job, what).catch(lost));
    setBusy(false);
  };
  const stop = () => confirm(`Stop ${job.job}? It takes a last checkpoint, commits it and ends.`) && run("stop", "Stopping …");
  return html`<div class="actions" role="group" aria-label="Job actions">
    ${job.pid !== null && html`<button disabled=${busy} onClick=${() => run("savepoint", "Creating a savepoint …")}>Create a savepoint</button>
      <button class="danger" disabled=${busy} onClick=${stop}>Stop the job</button>`}
    <p role="status" class=${said?.fault ? "why fault" : "quiet"} hidden=${said === null}>${said?.text}</p>
  </div>`;
}
