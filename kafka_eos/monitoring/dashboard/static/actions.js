// What may be asked of a running job, by those whose address had the token in it.

import { html, useState } from "./vendor/htm-preact.js";

const KEY = "token";

// The token goes from the address into this tab, so that it is neither seen nor bookmarked.
export function keepToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get(KEY);
  if (given === null) return;
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
}

async function ask(job, what) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(KEY)}` };
  const answer = await fetch(`/api/jobs/${encodeURIComponent(job)}/${what}`, { method: "POST", headers });
  const told = await answer.json();
  if (told.error !== undefined) return { fault: true, text: told.error };
  return { fault: false, text: what === "stop" ? "The job was asked to stop, and has taken its last checkpoint." : `Savepoint of epoch ${told.epoch}: ${told.path}` };
}

// What is told to who has the token.
export async function asked(job, what) {
  const answer = await fetch(`/api/jobs/${encodeURIComponent(job)}/${what}`, {
    headers: { Authorization: `Bearer ${sessionStorage.getItem(KEY)}` },
  });
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer.json();
}

export const mayAsk = () => sessionStorage.getItem(KEY) !== null;

// The token goes in a header, so a link cannot do it: the file is fetched whole, and then saved.
export function Download({ job, name }) {
  const [said, setSaid] = useState("Download");
  const save = async () => {
    setSaid("Downloading …");
    const answer = await fetch(`/api/jobs/${encodeURIComponent(job)}/savepoints/${encodeURIComponent(name)}`, {
      headers: { Authorization: `Bearer ${sessionStorage.getItem(KEY)}` },
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
    const lost = () => ({ fault: true, text: "The dashboard did not answer. See below what has happened." });
    setSaid(await ask(job.job, what).catch(lost));
    setBusy(false);
  };
  const stop = () => confirm(`Stop ${job.job}? It takes a last checkpoint, commits it, and ends.`) && run("stop", "Stopping …");
  return html`<div class="actions" role="group" aria-label="What the job can be asked for">
    ${job.pid !== null && html`<button disabled=${busy} onClick=${() => run("savepoint", "Making a savepoint …")}>Make a savepoint</button>
      <button class="danger" disabled=${busy} onClick=${stop}>Stop the job</button>`}
    <p role="status" class=${said?.fault ? "why fault" : "quiet"} hidden=${said === null}>${said?.text}</p>
  </div>`;
}
