// One job: its status, plan, epochs, events and state.

import { html } from "./vendor/htm-preact.js";
import { Actions, Download, mayAsk } from "./actions.js";
import { figures, Graph, shares } from "./graph.js";
import { Letters } from "./letters.js";
import { useNow, useRoom } from "./live.js";
import { breakable, Section, State, Table, Tile } from "./parts.js";
import { ago, bytes, clock, count, rate, share, span } from "./text.js";
import { PHASES, Timeline } from "./timeline.js";

const NARROW = 620;

function Figures({ job, now }) {
  const { rates } = job;
  const session = `records in ${job.pid ? "this" : "the last"} session`;
  return html`<dl class="tiles">
    <${Tile} name="read" value=${rates ? rate(rates.in) : count(job.records_in)} note=${rates ? `${count(job.records_in)} in this session` : session} />
    <${Tile} name="written" value=${rates ? rate(rates.out) : count(job.records_out)} note=${rates ? `${count(job.records_out)} in this session` : session} />
    <${Tile} name="lag" value=${count(job.lag)} note="records not read yet" />
    <${Tile} name="epoch" value=${count(job.epoch)} note=${`committed ${ago(job.committed_at, now)}`} />
    <${Tile} name="restarts" value=${count(job.restarts)} note="since the job was started" alarm=${job.restarts > 0} />
    <${Tile} name="dead letters" value=${count(job.dead_letters)} note="rejected records" alarm=${job.dead_letters > 0} />
    ${job.set_aside > 0 && html`<${Tile} name="set aside" value=${count(job.set_aside)} note="rows that a receiver refused" alarm=${true} />`}
  </dl>`;
}

function Plan({ job, room }) {
  if (job.operators.length === 0) {
    return html`<${Section} title="Plan"><p class="quiet">The plan is not known yet: the job has not started.</p><//>`;
  }
  const { rates } = job;
  const rows = job.operators.map((each) => {
    const states = shares(each, rates);
    return [each.name, each.kind, each.inputs.join(", "), figures(each, rates), rate(rates?.operators[each.name]?.rows_out), share(states?.busy), share(states?.blocked), each.detail];
  });
  const timed = Object.keys(rates?.segments ?? {}).length > 0;
  return html`<${Section} title="Plan">
    ${timed && html`<p class="legend"><span><i class="key busy"></i> busy</span><span><i class="key blocked"></i> back-pressured: downstream has no room</span></p>`}
    <${Graph} operators=${job.operators} rates=${rates} upright=${room < NARROW} room=${room} />
    <details><summary>As a table</summary>
      <${Table} caption="Operators of the plan" columns=${["operator", "kind", "inputs", "now", "#out/s", "#busy", "#back-pressure", "details"]} rows=${rows} />
    </details>
  <//>`;
}

function Epochs({ job, room }) {
  if (job.epochs.length === 0) {
    return html`<${Section} title="Epochs"><p class="quiet">${job.has_diary ? "No epoch has been decided yet." : "No epochs are recorded here: the job ran on another machine."}</p><//>`;
  }
  const faults = job.happenings.filter((each) => each.fault);
  const rows = job.epochs.slice(-20).reverse().map((each) => [
    each.epoch, clock(each.decided_at), ...PHASES.map(([name]) => span(each[name])), count(each.records), bytes(each.state_bytes),
  ]);
  return html`<${Section} title="Epochs" note="How long each epoch took from its trigger to its commit. A red mark is a failure.">
    <p class="legend">${PHASES.map(([name, text]) => html`<span><i class=${`key phase-${name}`}></i> ${text}</span>`)}</p>
    <${Timeline} epochs=${job.epochs} faults=${faults} room=${room} />
    <details><summary>As a table</summary>
      <${Table} caption="The newest epochs and their phases" columns=${["epoch", "decided", "#alignment", "#snapshot", "#upload", "#commit", "#records", "#state"]} rows=${rows} />
    </details>
  <//>`;
}

function Happenings({ job }) {
  return html`<${Section} title="Events">
    ${job.happenings.length === 0 && html`<p class="quiet">No events recorded.</p>`}
    <ol class="happenings">${job.happenings.map((each) => html`<li class=${each.fault ? "fault" : ""} key=${`${each.at} ${each.title}`}>
      <time>${clock(each.at)}</time>
      <div><strong>${each.title}</strong>${each.back !== undefined && html` <span class="quiet">· recovered in ${span(each.back)}</span>`}
      ${each.text && html`<p>${each.text}</p>`}</div>
    </li>`)}</ol>
  <//>`;
}

const Partitions = ({ job }) => job.splits.length > 0 && html`<${Section} title="Partitions">
  <${Table} caption="Position and lag of each partition" columns=${["partition", "source", "#read up to", "#lag", ""]}
    rows=${job.splits.map((each) => [each.split, each.source, count(each.position), count(each.lag), each.waits ? "paused (watermark alignment)" : ""])} />
<//>`;

const Watermarks = ({ job }) => job.watermarks.length > 0 && html`<${Section} title="Event time" note="Watermarks as of the newest checkpoint.">
  <${Table} caption="Watermark of each partition" columns=${["partition", "operator", "watermark"]}
    rows=${job.watermarks.map((each) => [each.split, each.operator, each.at > 0 ? clock(each.at) : "–"])} />
<//>`;

function Held({ job }) {
  const rows = job.operators.filter((each) => each.state_bytes !== null || each.timers !== null || each.late !== null)
    .map((each) => [each.name, bytes(each.state_bytes), count(each.timers), count(each.late)]);
  return rows.length > 0 && html`<${Section} title="State" note="In the newest checkpoint.">
    <${Table} caption="State of each operator" columns=${["operator", "#size", "#timers", "#late rows"]} rows=${rows} />
  <//>`;
}

function Savepoints({ job }) {
  const rows = [...job.savepoints].reverse().map((each) => [
    html`<span title=${each.name}>${each.problem ? each.name : clock(each.made_at)}</span>`,
    each.problem ? "damaged" : count(each.epoch), bytes(each.bytes),
    ...(mayAsk() ? [each.problem ? "" : html`<${Download} key=${each.name} job=${job.job} name=${each.name} />`] : []),
  ]);
  const columns = ["created", "#epoch", "#size", ...(mayAsk() ? ["as a file"] : [])];
  return rows.length > 0 && html`<${Section} title="Savepoints" note=${`In ${job.savepoints[0].path.replace(/[/][^/]*$/, "")}, the newest first.`}>
    <${Table} caption="Savepoints of the job" columns=${columns} rows=${rows} />
    ${job.savepoints.filter((each) => each.problem).map((each) => html`<p class="why fault">${each.problem}</p>`)}
  <//>`;
}

const Errors = ({ job, now }) => job.errors.length > 0 && html`<${Section} title="Last messages">
  ${job.errors.map((each) => html`<details key=${each.event}><summary><strong>${each.event}</strong> <span class="quiet">${ago(each.at, now)}</span></summary><pre>${each.text}</pre></details>`)}
<//>`;

function Settings({ job }) {
  const given = job.settings.filter((each) => each.origin !== "default");
  const rows = (settings) => settings.map((each) => [breakable(each.name), breakable(each.value), breakable(each.origin)]);
  const columns = ["setting", "value", "from"];
  return job.settings.length > 0 && html`<${Section} title="Settings">
    ${given.length === 0 ? html`<p class="quiet">All settings have their defaults.</p>` : html`<${Table} wraps caption="Settings that are set" columns=${columns} rows=${rows(given)} />`}
    <details><summary>All ${job.settings.length} settings</summary><${Table} wraps caption="All settings" columns=${columns} rows=${rows(job.settings)} /></details>
  <//>`;
}

export function Job({ job }) {
  const now = useNow(), room = useRoom();
  return html`
    <div class="title"><h1>${job.job}</h1><${State} state=${job.state} />
      <p class="quiet">${job.pid ? `process ${job.pid}${job.workers ? `, ${count(job.workers)} ${job.workers > 1 ? "workers" : "worker"}` : ""}` : `last update ${clock(job.told_at)}`}</p></div>
    <p class="hidden" role="status">${`The job is ${job.state}${job.reason ? `: ${job.reason}` : ""}`}</p>
    ${job.reason && html`<p class=${`why ${job.fault ? "fault" : ""}`}>${job.reason}</p>`}
    <${Actions} job=${job} />
    <${Figures} job=${job} now=${now} />
    <${Plan} job=${job} room=${room} />
    <${Epochs} job=${job} room=${room} />
    <div class="columns">
      <${Happenings} job=${job} />
      <div><${Partitions} job=${job} /><${Watermarks} job=${job} /><${Held} job=${job} /><${Savepoints} job=${job} /><${Letters} job=${job} /><${Errors} job=${job} now=${now} /><${Settings} job=${job} /></div>
    </div>`;
}
