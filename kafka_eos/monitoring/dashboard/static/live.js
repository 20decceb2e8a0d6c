// Live updates from the server. Rule: the page shows that a connection is lost or rejected, with the reason if it is
// known, and retries until it is connected.

import { useEffect, useState } from "./vendor/htm-preact.js";

const RETRY = 2000;
// The server sends something at least every ten seconds; a host that is gone sends nothing and closes nothing.
const SILENCE = 25000;

// Reads server-sent events until the stream ends. An EventSource would not give the reason of a rejection.
async function read(path, aborter, tell) {
  let silence;
  const heard = () => { clearTimeout(silence); silence = setTimeout(() => aborter.abort(), SILENCE); };
  try {
    heard();
    const answer = await fetch(path, { signal: aborter.signal });
    if (!answer.ok) return await refusal(answer);
    const chunks = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", chunk = await chunks.read(); !chunk.done; chunk = await chunks.read()) {
      heard();
      const events = (rest + chunk.value).split("\n\n");
      rest = events.pop();
      for (const event of events) if (event.startsWith("data: ")) tell(JSON.parse(event.slice(6)));
    }
    return { link: "lost", why: null, after: RETRY };
  } finally {
    clearTimeout(silence);
  }
}

async function refusal(answer) {
  const after = 1000 * Number(answer.headers.get("Retry-After")) || RETRY;
  const told = await answer.json().catch(() => ({}));
  return { link: "refused", why: told.error ?? `the server responded ${answer.status} ${answer.statusText}`, after };
}

// `told` is the newest message; `link` is "opening", "live", "lost" or "refused", and `why` the reason of the last two.
export function useStream(path) {
  const [told, setTold] = useState(null);
  const [{ link, why }, setState] = useState({ link: "opening", why: null });
  useEffect(() => {
    let over = false, timer, aborter;
    const hear = (message) => {
      setTold(message);
      setState((before) => (before.link === "live" ? before : { link: "live", why: null }));
    };
    const open = async () => {
      aborter = new AbortController();
      const lost = { link: "lost", why: null, after: RETRY };
      const ended = await read(path, aborter, hear).catch(() => lost);
      if (over) return;
      setState(ended);
      timer = setTimeout(open, ended.after);
    };
    open();
    return () => { over = true; clearTimeout(timer); aborter.abort(); };
  }, [path]);
  return { told, link, why };
}

// The current time, every second.
export function useNow() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

// The width of the page's content, in pixels.
export function useRoom() {
  // A window that is not drawn yet may have no width.
  const measure = () => Math.max(240, Math.min(1240, document.documentElement.clientWidth) - (document.documentElement.clientWidth < 700 ? 56 : 96));
  const [room, setRoom] = useState(measure());
  useEffect(() => {
    const change = () => setRoom(measure());
    addEventListener("resize", change);
    return () => removeEventListener("resize", change);
  }, []);
  return room;
}
