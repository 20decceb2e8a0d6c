// The pages: the list of jobs, and one job. Screen readers hear updates from one place.

import { html, render, useEffect } from "./vendor/htm-preact.js";
import { keepToken } from "./actions.js";
import { Job } from "./job.js";
import { useNow, useStream } from "./live.js";
import { State } from "./parts.js";
import { ago, count } from "./text.js";

const LINKS = { opening: "connecting …", live: "live", lost: "connection lost, retrying …", refused: "rejected, retrying …" };

function Frame({ job, link, why, children }) {
  return html`<a class="skip" href="#content">Skip to content</a>
    <header class="top">
      <a class="brand" href="/"><img src="/static/icon.svg" alt="" width="22" height="22" />kafka-eos</a>
      ${job && html`<nav aria-label="Breadcrumb"><span aria-hidden="true">/</span> <span aria-current="page">${job}</span></nav>`}
      <p class=${`link ${link}`} role="status"><span aria-hidden="true" class="dot"></span>${LINKS[link]}</p>
    </header>
    <main id="content" tabindex="-1">${(why || link === "lost") && html`<p class="why fault" role="alert">Not updating: ${why ?? "the connection is lost; the page shows the last known state"}.</p>`}${children}</main>`;
}

function Jobs() {
  const { told, link, why } = useStream("/api/events");
  const now = useNow();
  useEffect(() => { document.title = "Jobs · kafka-eos"; }, []);
  return html`<${Frame} link=${link} why=${why}>
    <h1>Jobs</h1>
    ${told && html`<p class="quiet">of <code>${told.home}</code></p>`}
    ${told && told.jobs.length === 0 && html`<p class="card">No job has run in this directory. Start one with <code>kafka-eos run APP</code>, or show another directory with <code>kafka-eos ui --checkpoint-dir DIR</code>.</p>`}
    <ul class="jobs">${told?.jobs.map((each) => html`<li class="card" key=${each.job}>
      <h2><a href=${`/job/${encodeURIComponent(each.job)}`}>${each.job}</a></h2>
      <${State} state=${each.state} />
      ${each.reason && html`<p class=${`why ${each.fault ? "fault" : ""}`}>${each.reason}</p>`}
      <dl class="line">
        <div><dt>epoch</dt><dd>${count(each.epoch)}</dd></div>
        <div><dt>committed</dt><dd>${ago(each.committed_at, now)}</dd></div>
        <div><dt>lag</dt><dd>${count(each.lag)}</dd></div>
        <div><dt>restarts</dt><dd>${count(each.restarts)}</dd></div>
      </dl>
    </li>`)}</ul>
  <//>`;
}

function OneJob({ name }) {
  const { told, link, why } = useStream(`/api/jobs/${encodeURIComponent(name)}/events`);
  const state = ["lost", "refused"].includes(link) ? LINKS[link] : told?.state;
  useEffect(() => { document.title = `${state ? `${state}: ` : ""}${name} · kafka-eos`; }, [state]);
  return html`<${Frame} job=${name} link=${link} why=${why}>
    ${told?.missing ? html`<h1>${name}</h1><p class="card">${told.missing}. This page updates when it does. <a href="/">All jobs</a></p>` : told && html`<${Job} job=${told} />`}
  <//>`;
}

keepToken();
const [, page, name] = location.pathname.split("/");
render(page === "job" ? html`<${OneJob} name=${decodeURIComponent(name)} />` : html`<${Jobs} />`, document.body);
