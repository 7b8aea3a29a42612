"use strict";
(() => {
  const frame = document.querySelector(".diagram");
  const svg = frame.querySelector("svg");
  const facts = document.querySelector(".facts");
  const whole = svg.viewBox.baseVal;
  const home = [whole.x, whole.y, whole.width, whole.height];
  let view = home.slice();
  const show = () => svg.setAttribute("viewBox", view.map((n) => n.toFixed(2)).join(" "));
  const scale = () => Math.max(view[2] / svg.clientWidth, view[3] / svg.clientHeight);
  const move = (dx, dy) => { view[0] += dx; view[1] += dy; show(); };
  const zoom = (times, x = 0.5, y = 0.5) => {
    const width = Math.min(Math.max(view[2] * times, home[2] / 40), home[2] * 3);
    const real = width / view[2];
    view = [view[0] + view[2] * x * (1 - real), view[1] + view[3] * y * (1 - real), width, view[3] * real];
    show();
  };
  const fit = () => { view = home.slice(); show(); };
  const does = { in: () => zoom(0.8), out: () => zoom(1.25), fit };
  for (const button of document.querySelectorAll("[data-do]")) {
    button.addEventListener("click", () => does[button.dataset.do]());
  }
  const keys = {
    "+": does.in, "=": does.in, "-": does.out, "0": fit,
    ArrowLeft: () => move(-view[2] / 10, 0), ArrowRight: () => move(view[2] / 10, 0),
    ArrowUp: () => move(0, -view[3] / 10), ArrowDown: () => move(0, view[3] / 10),
  };
  frame.addEventListener("keydown", (event) => {
    if (keys[event.key] && !event.ctrlKey && !event.metaKey) { keys[event.key](); event.preventDefault(); }
  });
  frame.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = svg.getBoundingClientRect();
    zoom(event.deltaY > 0 ? 1.15 : 0.87, (event.clientX - box.x) / box.width, (event.clientY - box.y) / box.height);
  }, { passive: false });
  let held = null;
  frame.addEventListener("pointerdown", (event) => { held = [event.clientX, event.clientY]; frame.classList.add("held"); });
  window.addEventListener("pointermove", (event) => {
    if (!held) return;
    move((held[0] - event.clientX) * scale(), (held[1] - event.clientY) * scale());
    held = [event.clientX, event.clientY];
  });
  window.addEventListener("pointerup", () => { held = null; frame.classList.remove("held"); });
  // Graphviz puts each tooltip into an <a xlink:title>; it becomes the panel's text.
  const words = (group) => {
    const link = group.querySelector("a");
    return (link && link.getAttributeNS("http://www.w3.org/1999/xlink", "title")) || "";
  };
  const rows = new Map();
  for (const row of document.querySelectorAll("#part-rows tr")) {
    rows.set(row.dataset.name, [...(rows.get(row.dataset.name) || []), row]);
  }
  for (const group of svg.querySelectorAll("g.node, g.edge")) {
    const text = words(group);
    if (!text) continue;
    const tell = () => { facts.textContent = text; facts.hidden = false; };
    const name = text.split("\n")[0].replace(/ \(\d+\)$/, "");
    const mark = (on) => {
      group.classList.toggle("chosen", on);
      for (const row of rows.get(name) || []) row.classList.toggle("chosen", on);
    };
    for (const row of rows.get(name) || []) {
      row.addEventListener("pointerenter", () => { tell(); mark(true); });
      row.addEventListener("pointerleave", () => mark(false));
    }
    group.addEventListener("pointerenter", () => mark(true));
    group.addEventListener("pointerleave", () => mark(false));
    group.addEventListener("pointerenter", tell);
    group.addEventListener("focus", tell);
    if (group.classList.contains("node")) { group.setAttribute("tabindex", "0"); group.setAttribute("aria-label", text); }
  }
  for (const group of document.querySelectorAll("#timeline g.node")) {
    const text = words(group).trim();
    if (text) group.addEventListener("pointerenter", () => { facts.textContent = text; facts.hidden = false; });
  }
  for (const link of document.querySelectorAll("svg a")) link.setAttribute("tabindex", "-1");
  window.addEventListener("beforeprint", () => {
    fit();
    for (const hidden of document.querySelectorAll("details")) hidden.open = true;
  });
  // A click on a head sorts by it; "1.50 MiB", "3.2 ms" and "7 %" by their size.
  const units = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, "%": 1 };
  const size = (text) => {
    const found = text.match(/^<?(-|[\d.]+)\s*([A-Za-z%]*)/);
    return found ? (found[1] === "-" ? 0 : found[1] * (units[found[2]] || 1)) : NaN;
  };
  for (const head of document.querySelectorAll(".sorted th")) head.addEventListener("click", () => {
    const at = head.cellIndex, body = head.closest("table").tBodies[0];
    const text = (row) => row.cells[at].textContent;
    const down = head.dataset.down = head.dataset.down ? "" : "1";
    const order = head.classList.contains("n") ? (a, b) => size(text(b)) - size(text(a)) : (a, b) => text(a).localeCompare(text(b), undefined, { numeric: true });
    body.append(...[...body.rows].sort((a, b) => (down ? 1 : -1) * order(a, b)));
  });
  const filter = document.querySelector(".filter input");
  if (filter) filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    for (const row of document.querySelectorAll("#part-rows tr")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
})();
