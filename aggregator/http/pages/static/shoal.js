// Keeps a page as the service has it: asks for the page again every second, and changes what has changed in the parts marked `data-live`.
// What somebody has opened, typed or moved the focus to stays. Without this script every page still works; then a reload shows what is new.
"use strict";

const PERIOD_MS = 1000;
const MOST_PERIOD_MS = 15000;
let tag = "";
let period_ms = PERIOD_MS;

function words(span_s) {
  const s = Math.max(0, Math.round(span_s));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} days`;
}

function tellTimes() {
  for (const time of document.querySelectorAll("time[data-ago], time[data-until]")) {
    const span_s = (Date.now() - Date.parse(time.dateTime)) / 1000;
    const text = "ago" in time.dataset ? `${words(span_s)} ago` : `in ${words(-span_s)}`;
    if (time.textContent !== text) {
      time.title = `${time.dateTime.replace("T", " ").slice(0, 19)} UTC`;
      time.textContent = text;
    }
  }
}

// Changes `old` into `made`, in place. Elements are the same if they have the same id: an order that would now do something else is another
// element, so that nobody confirms what they have not read. What somebody has opened and may choose in stays as it was read.
function morph(old, made) {
  for (const { name, value } of [...made.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name) && name !== "open" && name !== "title") old.removeAttribute(name);
  let at = old.firstChild;
  for (const child of [...made.childNodes]) {
    let same = at;
    if (child.id) same = [...old.children].find((known) => known.id === child.id);
    else if (at && (at.nodeName !== child.nodeName || at.id)) same = null;
    if (!same) {
      old.insertBefore(child.cloneNode(true), at);
      continue;
    }
    if (same !== at) old.insertBefore(same, at);
    if (same.nodeName === "DETAILS" && same.open && same.querySelector("form")) {
      at = same.nextSibling;
      continue;
    }
    if (same.nodeType === Node.ELEMENT_NODE) morph(same, child);
    else if (same.data !== child.data) same.data = child.data;
    at = same.nextSibling;
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function show(html) {
  const made = new DOMParser().parseFromString(html, "text/html");
  const focused = document.activeElement;
  for (const part of document.querySelectorAll("[data-live]")) {
    const fresh = made.getElementById(part.id);
    if (fresh) morph(part, fresh);
  }
  if (focused && focused.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
  tellTimes();
}

async function look() {
  try {
    const headers = { "X-Shoal-Look": "1" };
    if (tag) headers["If-None-Match"] = tag;
    const answer = await fetch(location.href, { headers, cache: "no-store", redirect: "error" });
    if ([401, 403, 404].includes(answer.status)) return location.reload();
    if (answer.ok) {
      tag = answer.headers.get("ETag");
      show(await answer.text());
    }
    const went = answer.ok || answer.status === 304;
    document.getElementById("lost").hidden = went;
    period_ms = went ? PERIOD_MS : Math.min(2 * period_ms, MOST_PERIOD_MS);
  } catch {
    document.getElementById("lost").hidden = false;
    period_ms = Math.min(2 * period_ms, MOST_PERIOD_MS);
  }
  setTimeout(lookIfSeen, period_ms);
}

// A page that nobody sees asks for nothing.
function lookIfSeen() {
  if (document.hidden) document.addEventListener("visibilitychange", lookIfSeen, { once: true });
  else look();
}

tellTimes();
setInterval(tellTimes, 1000);
if (document.querySelector("[data-live]")) setTimeout(lookIfSeen, PERIOD_MS);
