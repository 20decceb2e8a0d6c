// The plan as a graph: operators in columns (rows on a narrow page) by how many steps they are from a source.

import { html } from "./vendor/htm-preact.js";
import { bytes, count, rate, share } from "./text.js";

const HEIGHT = 76;
const ACROSS = 22;
const fit = (least, wished, most) => Math.max(least, Math.min(most, wished));

// The longest path to each operator, without the feedback edges of loops.
function depths(operators) {
  const found = new Map();
  for (const each of operators) {
    const above = each.inputs.filter((name) => found.has(name)).map((name) => found.get(name) + 1);
    found.set(each.name, Math.max(0, ...above));
  }
  return found;
}

// The position of each box, `upright` from top to bottom; in `room` pixels of width if that is enough.
export function layout(operators, upright, room) {
  const depth = depths(operators);
  const ranks = [];
  for (const each of operators) (ranks[depth.get(each.name)] ??= []).push(each.name);
  const widest = Math.max(...ranks.map((rank) => rank.length));
  const width = upright ? fit(128, (room - 4 - (widest - 1) * ACROSS) / widest, 200) : fit(140, (room - 4) / ranks.length - 48, 176);
  const gap = upright ? 46 : fit(44, (room - 4 - ranks.length * width) / Math.max(1, ranks.length - 1), 84);
  const [along, across] = upright ? [HEIGHT, width] : [width, HEIGHT];
  const places = new Map();
  ranks.forEach((rank, i) => rank.forEach((name, j) => {
    const a = i * (along + gap), b = (j + (widest - rank.length) / 2) * (across + ACROSS);
    places.set(name, upright ? { x: b, y: a } : { x: a, y: b });
  }));
  const length = ranks.length * (along + gap) - gap;
  const breadth = widest * (across + ACROSS) - ACROSS;
  return { places, box: width, width: upright ? breadth : length, height: upright ? length : breadth };
}

function curve(from, to, box, upright) {
  const [x1, y1] = upright ? [from.x + box / 2, from.y + HEIGHT] : [from.x + box, from.y + HEIGHT / 2];
  const [x2, y2] = upright ? [to.x + box / 2, to.y] : [to.x, to.y + HEIGHT / 2];
  const [mx, my] = [(x1 + x2) / 2, (y1 + y2) / 2];
  const d = upright ? `M${x1} ${y1}C${x1} ${my} ${x2} ${my} ${x2} ${y2}` : `M${x1} ${y1}C${mx} ${y1} ${mx} ${y2} ${x2} ${y2}`;
  return { d, x: mx, y: my };
}

// The flow over an edge: the rows a sink receives, else the rows the upstream operator emits; and its back-pressure.
function edge(from, to, rates) {
  const held = from.segment !== to.segment ? rates?.segments[from.segment]?.blocked : undefined;
  const flow = rates?.written[to.name] ?? rates?.operators[from.name]?.rows_out ?? rates?.read[from.name];
  const level = held > 0.5 ? "high" : held > 0.1 ? "some" : "none";
  return { flow, held, level };
}

export function figures(operator, rates) {
  if (operator.kind === "source") return rates ? rate(rates.read[operator.name]) : `${count(operator.read)} read`;
  if (operator.kind === "sink") return rates ? rate(rates.written[operator.name]) : `${count(operator.written)} written`;
  if (operator.state_bytes !== null) return `${bytes(operator.state_bytes)} of state`;
  return operator.detail.split(";")[0];
}

const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Shares of time of an operator; older versions report them per operator chain only, at its head.
export function shares(operator, rates) {
  return rates?.operators[operator.name] ?? (operator.segment === operator.name ? rates?.segments[operator.name] : undefined);
}

function Box({ operator, at, width, rates }) {
  const states = shares(operator, rates);
  const work = Math.min(1, states?.busy ?? 0), wait = Math.min(1 - work, states?.blocked ?? 0);
  const whole = width - 24, letters = Math.floor(whole / 9);
  return html`<g transform=${`translate(${at.x} ${at.y})`} class=${`box ${operator.kind}`}>
    <title>${operator.name}: ${operator.kind}. ${operator.detail}</title>
    <rect width=${width} height=${HEIGHT} rx="10" class="frame" />
    <text x="12" y="22" class="name">${shortened(operator.name, letters)}</text>
    <text x="12" y="39" class="kind">${shortened(operator.kind, letters + 3)}</text>
    <text x="12" y="56" class="figure">${shortened(figures(operator, rates), letters + 3)}</text>
    ${states && html`<rect x="12" y="64" width=${whole} height="4" rx="2" class="idle" />
      <rect x="12" y="64" width=${whole * work} height="4" rx="2" class="busy" />
      <rect x=${12 + whole * work} y="64" width=${whole * wait} height="4" rx="2" class="blocked" />`}
  </g>`;
}

// The label of an edge: its rate, or two short lines on its back-pressure, because boxes may be close together.
function Flow({ way, told, upright }) {
  const x = way.x + (upright ? 6 : 0), y = way.y - (upright ? 0 : 6);
  const kind = `flow ${told.level} ${upright ? "beside" : ""}`;
  if (told.held > 0.1) {
    return html`<text x=${x} y=${y} class=${kind}><tspan x=${x} dy="-13">back-press.</tspan><tspan x=${x} dy="13">${share(told.held)}</tspan></text>`;
  }
  return told.flow === undefined || told.flow === null ? null : html`<text x=${x} y=${y} class=${kind}>${rate(told.flow)}</text>`;
}

export function Graph({ operators, rates, upright, room }) {
  const { places, box, width, height } = layout(operators, upright, room);
  const byName = new Map(operators.map((each) => [each.name, each]));
  const edges = operators.flatMap((to) => to.inputs.filter((name) => byName.has(name)).map((name) => [byName.get(name), to]));
  const ways = edges.map(([from, to]) => ({
    way: curve(places.get(from.name), places.get(to.name), box, upright),
    told: edge(from, to, rates),
  }));
  return html`<div class="scroll" tabindex="0" role="region" aria-label="The plan as a graph; the table below has the same data">
    <svg class="graph" width=${width + 4} height=${height + 4} viewBox=${`-2 -2 ${width + 4} ${height + 4}`} aria-hidden="true">
      ${ways.map(({ way, told }) => html`<path d=${way.d} class=${`edge ${told.level}`} />`)}
      ${operators.map((each) => html`<${Box} operator=${each} at=${places.get(each.name)} width=${box} rates=${rates} />`)}
      ${ways.map(({ way, told }) => html`<${Flow} way=${way} told=${told} upright=${upright} />`)}
    </svg>
  </div>`;
}
