// What the server says, as it says it. Rule: a connection that is lost is told, and opened again until it is there.

import { useEffect, useState } from "./vendor/htm-preact.js";

const RETRY = 2000;

// `told` is the newest that was said; `link` is "opening", "live" or "lost".
export function useStream(path) {
  const [told, setTold] = useState(null);
  const [link, setLink] = useState("opening");
  useEffect(() => {
    let source, timer;
    const open = () => {
      source = new EventSource(path);
      source.onmessage = (message) => {
        setTold(JSON.parse(message.data));
        setLink("live");
      };
      source.onerror = () => {
        source.close();
        setLink("lost");
        timer = setTimeout(open, RETRY);
      };
    };
    open();
    return () => { clearTimeout(timer); source.close(); };
  }, [path]);
  return { told, link };
}

// The time, now and every second.
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
  // A window that is about to be drawn may have no width yet.
  const measure = () => Math.max(240, Math.min(1240, document.documentElement.clientWidth) - (document.documentElement.clientWidth < 700 ? 56 : 96));
  const [room, setRoom] = useState(measure());
  useEffect(() => {
    const change = () => setRoom(measure());
    addEventListener("resize", change);
    return () => removeEventListener("resize", change);
  }, []);
  return room;
}
