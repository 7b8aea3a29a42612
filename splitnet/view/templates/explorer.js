"use strict";
// The placement explorer: lanes of boxes that open, their links, and a panel.
// Records come as a table of heads and rows.
const data = JSON.parse(document.getElementById("data").textContent, (key, one) => !one?.heads ? one
  : one.rows.map((row) => Object.fromEntries(one.heads.map((head, n) => [head, row[n]]))));
const { parts, devices, links } = data;
const place = new Map(devices.map((one, n) => [one.name, n]));
const page = { listeners: [], lit: null };  // the views that follow the pointer
// Figures as the tables have them: of a tie the even one.
const figures = [0, 1, 2].map((digits) => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: false, roundingMode: "halfEven" }));
const scaled = (count, step, units, whole) => {
  let at = 0;
  while (count >= step * 0.9995 && at < units.length - 1) { count /= step; at += 1; }
  return `${figures[at < whole || count >= 99.95 ? 0 : count < 9.995 ? 2 : 1].format(count)} ${units[at]}`;
};
const bytes = (count) => scaled(count, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1);
const time = (seconds) => seconds ? scaled(seconds * 1e9, 1000, ["ns", "us", "ms", "s"], 0) : "0 s";
const percent = (share) => share && share < 0.0005 ? "<0.1 %" : `${figures[share && share < 0.0095 ? 1 : 0].format(100 * share)} %`;
const value = data.objective === "memory" ? bytes : time;
const shape = (sizes) => sizes.map((size) => size ?? "?").join(" × ") || "scalar";
/** Lanes of devices, those of a host together. */
const hosted = (lanes) => [...d3.group(lanes, (lane) => lane.device.host).values()].flat();
/** The colour of a device, lighter on a dark page. */
const color = (device) => `color-mix(in srgb, ${devices[device].color} var(--tone), white)`;
const short = (text, most) => {
  const all = [...text];  // letters: some have two units
  return all.length <= most ? text : `${all.slice(0, Math.ceil(most / 2) - 1).join("")}…${all.slice(-Math.floor(most / 2)).join("")}`;
};
const pen = document.createElement("canvas").getContext("2d");
/** A text of at most so many letters, and of fewer where they are wider than the room for them. */
const fitted = (text, most, room) => {
  pen.font = "600 11px system-ui, Helvetica, Arial, sans-serif";
  let shown = short(text, most);
  while (most > 3 && pen.measureText(shown).width > room) { most -= 1; shown = short(text, most); }
  return shown;
};
const sum = (its) => its.reduce((a, b) => a + b, 0);
const spent = (its) => sum(its.flatMap((one) => one.seconds));
const after = parts.map(() => []), before = parts.map(() => []);
for (const [source, target, , , , weights] of links) if (!weights) { after[source].push(target); before[target].push(source); }
const reached = (from, next) => {
  const found = new Set(from), todo = [...from];
  while (todo.length) for (const part of next[todo.pop()]) if (!found.has(part)) { found.add(part); todo.push(part); }
  return found;
};
/** Light what is upstream and downstream of some parts, in every view; null lights all. */
const light = (its) => {
  page.lit = its && new Set([...reached(its, after), ...reached(its, before)]);
  for (const listen of page.listeners) listen(page.lit, its && new Set(its));
};

(() => {
  const WIDE = 164, TALL = 44, GAP = 56, STACK = 12, LEFT = 144;
  const frame = document.querySelector(".explorer"), panel = document.querySelector(".panel");
  const svg = d3.select(frame).append("svg").attr("tabindex", 0).attr("role", "application")
    .attr("aria-label", "Placement explorer: arrow keys choose a box, Enter opens it, Escape closes it, + and - zoom");
  const back = svg.append("g"), world = svg.append("g"), front = svg.append("g").attr("pointer-events", "none");
  const nodes = [], chosen = { node: null }, moved = new Map();
  // A node of the tree: its parts or the layers of its part, its children, whether it is open.
  const node = (tree, parent, part) => {
    const leaf = typeof tree === "number", layer = part !== undefined;
    const self = { id: nodes.length, parent, open: !leaf && tree.open, times: leaf ? 1 : tree.times, whole: leaf && !layer };
    nodes.push(self);
    self.inside = leaf ? [] : tree.inside.map((one) => node(one, self, part));
    self.parts = layer ? [part] : leaf ? [tree] : self.inside.flatMap((one) => one.parts);
    if (layer) self.layers = leaf ? [tree] : self.inside.flatMap((one) => one.layers);
    if (self.whole && parts[tree].tree) self.inside = parts[tree].tree.inside.map((one) => node(one, self, tree));
    self.device = place.get(parts[self.parts[0]].device);
    return self;
  };
  const roots = data.blocks.map((tree) => node(tree, null));
  const unfold = (its) => its.flatMap((one) => one.open && !one.whole ? unfold(one.inside) : [one]);
  const members = (one) => one.layers ? one.layers.map((n) => parts[one.parts[0]].layers[n]) : one.parts.map((n) => parts[n]);
  const names = (one) => members(one).map((own) => own.name);
  const title = (one) => {
    const all = names(one);
    return all.length === 1 ? all[0] : `${all[0]} … ${all.at(-1)}${one.times > 1 ? ` ×${one.times}` : ` (${all.length})`}`;
  };
  const alike = d3.group(parts.map((one) => one.name), (name) => short(name, 22));
  /** A part's name in a box; names that would be shortened alike begin with the word in which they differ. */
  const apart = (name) => {
    const its = alike.get(short(name, 22));
    if (its.length === 1) return short(name, 22);
    const at = [...name].findIndex((letter, n) => its.some((other) => other[n] !== letter));
    return `…${short(name.slice(Math.max(0, name.slice(0, at).search(/[^/._]*$/))), 21)}`;
  };
  const brief = (one) => {
    const own = `${parts[one.parts[0]].name}/`, all = names(one).map((name) => one.layers && name.startsWith(own) ? name.slice(own.length) : name);
    const [first, last] = [all[0], all.at(-1)];
    if (all.length === 1) return one.layers ? short(first, 22) : apart(first);
    // As far as the word in which they differ; what they share stands once.
    const at = [...first].findIndex((letter, n) => letter !== last[n]), folder = first.slice(0, at).lastIndexOf("/") + 1;
    const word = (name) => name.slice(0, at) + name.slice(at).split(/(?=[/._])/)[0];
    return `${short(word(first), 10)} … ${short(word(last).slice(folder), 9)}${one.times > 1 ? ` ×${one.times}` : ""}`;
  };
  const between = d3.group(data.tensors, (one) => one[0], (one) => one[2]);
  let shown = [], lines = [], whole = [0, 0], lanes = [], boxOf = [], frames = [];

  /** Boxes in columns by their depth, each column as wide as its widest; the column's left ends. */
  const columns = (boxes, lines, ends) => {
    boxes.forEach((one, n) => { one.order = n; });
    const into = d3.group(lines.filter((line) => !line.weights && !line.both).map(ends), (line) => line[1]);
    for (const one of boxes) one.column = d3.max(into.get(one) || [], ([source]) => (source.order < one.order ? source.column + 1 : 0)) || 0;
    const wide = d3.rollup(boxes, (its) => d3.max(its, (one) => one.wide), (one) => one.column), lefts = [0];
    for (let n = 0; wide.has(n); n += 1) lefts.push(lefts[n] + wide.get(n) + GAP);
    for (const one of boxes) one.x = lefts[one.column];
    return lefts.at(-1) - GAP;
  };
  /** Stack the boxes of each column; the height of all. */
  const stack = (boxes, top) => {
    const cells = [...d3.group(boxes, (one) => one.column).values()], height = (cell) => sum(cell.map((one) => one.tall + STACK)) - STACK;
    const tall = d3.max(cells, height);
    for (const cell of cells) {
      let y = top + (tall - height(cell)) / 2;
      for (const one of cell) { one.y = y; y += one.tall + STACK; }
    }
    return tall;
  };
  const arrange = () => {
    const first = (one) => one.parts[0], tops = unfold(roots).sort((a, b) => first(a) - first(b));
    boxOf = new Array(parts.length); shown = []; frames = [];
    for (const top of tops) {
      [top.wide, top.tall, top.frame] = [WIDE, TALL, top];
      for (const part of top.parts) boxOf[part] = top;
      if (!(top.whole && top.open)) { shown.push(top); continue; }
      top.layerBoxes = unfold(top.inside); top.boxOf = [];
      for (const one of top.layerBoxes) { [one.wide, one.tall, one.frame] = [WIDE, TALL, top]; for (const layer of one.layers) top.boxOf[layer] = one; }
      frames.push(top); shown.push(...top.layerBoxes);
    }
    const end = (part, layer) => boxOf[part].boxOf && boxOf[part].open ? boxOf[part].boxOf[layer] : boxOf[part];
    const joined = new Map();
    const join = (a, b, size, sent, returned, weights) => {
      if (a === b) return;
      const turned = joined.has(`${b.id}-${a.id}-${weights}`);
      const key = turned ? `${b.id}-${a.id}-${weights}` : `${a.id}-${b.id}-${weights}`;
      const line = joined.get(key) || { source: a, target: b, size: 0, sent: 0, returned: 0, weights, both: false };
      line.size += size; line.sent += sent; line.returned += returned; line.both = line.both || turned;
      joined.set(key, line);
    };
    const tensors = (from, to) => between.get(from)?.get(to) || [];
    for (const [source, target, size, sent, returned, weights] of links) {
      const back = tensors(target, source).map(([b, n, a, m, part]) => [a, m, b, n, part]), both = weights ? [] : [...tensors(source, target), ...back];
      const all = sum(both.map((one) => one[4]));
      if (!frames.length || !all) join(end(source, 0), end(target, 0), size, sent, returned, weights);
      else for (const [, from, , to, part] of both) join(end(source, from), end(target, to), part, sent * part / all, returned * part / all, weights);
    }
    for (const top of frames) for (const [, from, , to, size] of tensors(first(top), first(top))) join(top.boxOf[from], top.boxOf[to], size, 0, 0, 0);
    lines = [...joined.values()];
    for (const top of frames) {
      top.wide = columns(top.layerBoxes, lines.filter((line) => line.source.frame === top && line.target.frame === top), (line) => [line.source, line.target]) + 2 * STACK;
      top.tall = stack(top.layerBoxes, 0) + STACK + 24;
    }
    const wide = columns(tops, lines.filter((line) => line.source.frame !== line.target.frame), (line) => [line.source.frame, line.target.frame]);
    let y = 8, host = null;
    lanes = hosted(devices.map((device, at) => ({ device, at, its: tops.filter((one) => one.device === at) })).filter((lane) => lane.its.length));
    for (const lane of lanes) {
      const { device, its } = lane;
      if (device.host !== host && devices.some((one) => one.host)) { lane.host = device.host || "this machine"; y += 20; }
      host = device.host;
      lane.y = y;
      lane.tall = stack(its, y + STACK) + 2 * STACK;
      y += lane.tall + 6;
    }
    for (const top of frames) for (const one of top.layerBoxes) { one.x += top.x + STACK; one.y += top.y + 24; }
    whole = [wide + 16, y + 4];
  };

  const curve = ({ source, target }) => {
    if (target.x > source.x) {
      const [x1, y1, x2, y2] = [source.x + WIDE, source.y + TALL / 2, target.x, target.y + TALL / 2], bend = Math.max(24, (x2 - x1) / 2);
      return [[x1, y1], [x1 + bend, y1], [x2 - bend, y2], [x2, y2]];
    }
    const down = target.y > source.y, x1 = source.x + WIDE * 0.7, x2 = target.x + WIDE * 0.7;
    const y1 = source.y + (down ? TALL : 0), y2 = target.y + (down ? 0 : TALL), side = target.y === source.y ? -40 : 0;
    return [[x1, y1], [x1 + 30, y1 + side], [x2 + 30, y2 + side], [x2, y2]];
  };
  const at = ([a, b, c, d], t) => [0, 1].map((n) => (1 - t) ** 3 * a[n] + 3 * (1 - t) ** 2 * t * b[n] + 3 * (1 - t) * t * t * c[n] + t ** 3 * d[n]);
  /** Where a line's label lies on no box and no other label; null if nowhere. */
  const room = (points, wide, taken) => {
    for (const t of [0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8]) {
      const [x, y] = at(points, t), box = [x - wide / 2, y - 7, x + wide / 2, y + 7];
      if (!taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) { taken.push(box); return [x, y]; }
    }
    return null;
  };

  const tint = (one) => `color-mix(in srgb, ${color(one.device)} 26%, var(--paper))`;
  /** Seconds and bytes of a box, without those that are 0; of an input its shape. */
  const cost = (one) => {
    const its = members(one), taken = spent(its), held = sum(its.map((own) => own.weight_bytes + own.activation_bytes));
    return [taken && time(taken), held && bytes(held)].filter(Boolean).join(" · ") || its[0].shapes.slice(0, 1).map(shape).join("");
  };
  const draw = () => {
    arrange();
    const most = d3.max(lines, (line) => line.sent + line.returned) || 1;
    const taken = shown.map((one) => [one.x, one.y, one.x + WIDE, one.y + TALL]);
    const crossing = lines.filter((line) => line.sent + line.returned).sort((a, b) => b.sent + b.returned - a.sent - a.returned);
    for (const line of lines) { line.points = curve(line); line.label = null; }
    for (const line of crossing.slice(0, 24)) {
      const text = line.sent === line.returned ? `${bytes(line.sent)} each way` : bytes(line.sent + line.returned), spot = room(line.points, text.length * 7 + 6, taken);
      line.label = spot && { text, x: spot[0], y: spot[1] };
    }
    back.selectAll("rect").data(lanes).join("rect").attr("rx", 8).attr("stroke", (lane) => color(lane.at))
      .attr("fill", (lane) => `color-mix(in srgb, ${color(lane.at)} 7%, var(--paper))`);
    front.selectAll("g").data(lanes).join((enter) => {
      const g = enter.append("g");
      g.append("rect").attr("class", "plate").attr("x", 3).attr("y", 3).attr("width", 136).attr("rx", 6);
      for (const name of ["lane-name", "lane-facts", "lane-host"]) g.append("text").attr("class", name).attr("x", 9);
      return g;
    }).each(function ({ device, host }) {
      const g = d3.select(this), full = device.held / device.limit;
      g.select(".lane-name").text(device.name.split("/").at(-1));
      g.select(".lane-facts").text(`${percent(device.busy)} busy · ${percent(full)} full`).classed("alarm", full > 1);
      g.select(".lane-host").text(host || "");
    });
    world.selectAll("g.frame").data(frames, (one) => one.id).join((enter) => {
      const g = enter.append("g").attr("class", "frame");
      g.append("rect").attr("rx", 8);
      g.append("text").attr("x", STACK).attr("y", 16);
      return g.on("click", (event, one) => choose(one)).on("dblclick", (event, one) => { event.stopPropagation(); fold(one); });
    }).attr("transform", (one) => `translate(${one.x},${one.y})`).lower().each(function (one) {
      d3.select(this).select("rect").attr("width", one.wide).attr("height", one.tall).attr("stroke", color(one.device));
      d3.select(this).select("text").text(`${title(one)} · ${cost(one)}`);
    });
    world.selectAll("path.line").data(lines, (line) => `${line.source.id}-${line.target.id}-${line.weights}`).join("path")
      .attr("class", (line) => `line${line.weights ? " weights" : line.source.device === line.target.device ? " local" : line.sent + line.returned ? "" : " reuse"}`)
      .attr("d", ({ points: [a, b, c, d] }) => `M${a}C${b} ${c} ${d}`)
      .style("stroke", (line) => line.sent + line.returned ? color(line.source.device) : null)
      .attr("stroke-width", (line) => Math.max(1.2, 6 * Math.sqrt((line.sent + line.returned) / most)))
      .on("pointerenter", (event, line) => light([...line.source.parts, ...line.target.parts])).on("pointerleave", () => light(null))
      .selectAll("title").data((line) => [line]).join("title")
      .text((line) => `${title(line.source)} ${line.both ? "↔" : "→"} ${title(line.target)}\n${line.weights ? "weights" : `${bytes(line.size)} of tensors`}; copied per step: ${bytes(line.sent)} there, ${bytes(line.returned)} back`);
    const boxes = world.selectAll("g.box").data(shown, (one) => one.id).join((enter) => {
      const g = enter.append("g").attr("class", "box");
      g.append("rect").attr("class", "under").attr("x", 3).attr("y", 3).attr("width", WIDE).attr("height", TALL).attr("rx", 6);
      g.append("rect").attr("class", "body").attr("width", WIDE).attr("height", TALL);
      g.append("text").attr("class", "name").attr("x", WIDE / 2).attr("y", 18);
      g.append("text").attr("class", "cost").attr("x", WIDE / 2).attr("y", 34);
      g.append("title");
      return g.on("pointerenter", (event, one) => light(one.parts)).on("pointerleave", () => light(null))
        .on("click", (event, one) => choose(one)).on("dblclick", (event, one) => { event.stopPropagation(); open(one); });
    }).attr("transform", (one) => `translate(${one.x},${one.y})`);
    boxes.classed("many", (one) => one.inside.length).raise();
    boxes.select(".body").attr("rx", (one) => ["input", "merge"].includes(parts[one.parts[0]].kind) ? 0 : 7)
      .attr("fill", (one) => parts[one.parts[0]].kind === "input" ? "var(--paper)" : tint(one)).attr("stroke", (one) => color(one.device))
      .attr("stroke-width", (one) => !one.layers && one.parts.some((part) => parts[part].is_output) ? 3.5 : 1.2)
      .classed("fell", (one) => one.parts.some((part) => parts[part].fallback));
    boxes.select(".name").text((one) => fitted(brief(one), 40, WIDE - 8));
    boxes.select(".cost").text((one) => {
      const to = one.parts.find((part) => moved.has(part)), kinds = one.layers && [...new Set(members(one).map((layer) => layer.kind))];
      if (to !== undefined) return `move to ${moved.get(to)}`;
      return kinds ? `${kinds.length === 1 ? short(kinds[0], 16) : `${kinds.length} kinds`} · ${time(spent(members(one)))}` : cost(one);
    }).classed("alarm", (one) => one.parts.some((part) => moved.has(part)));
    boxes.select("title").text((one) => `${title(one)}\n${one.inside.length ? "double click or Enter opens it" : members(one)[0].kind}`);
    world.selectAll("text.label").data(lines.filter((line) => line.label)).join("text").attr("class", "label")
      .attr("x", (line) => line.label.x).attr("y", (line) => line.label.y + 4).text((line) => line.label.text).raise();
    mark();
  };
  const mark = () => world.selectAll("g.box, g.frame").classed("chosen", (one) => one === chosen.node);
  page.listeners.push((lit) => {
    world.selectAll("g.box").classed("dim", (one) => lit && !one.parts.some((part) => lit.has(part)));
    world.selectAll("path.line").classed("dim", (line) => lit && !(line.source.parts.some((part) => lit.has(part)) && line.target.parts.some((part) => lit.has(part))));
  });

  const zoom = d3.zoom().scaleExtent([0.02, 3]).on("zoom", ({ transform }) => {
    world.attr("transform", transform);
    svg.classed("far", transform.k < 0.5);
    const right = Math.max(frame.clientWidth, transform.applyX(whole[0])), left = Math.min(0, transform.x);
    const tall = (lane) => lane.tall * transform.k, down = (lane) => transform.applyY(lane.y);
    back.selectAll("rect").attr("x", left + 2).attr("y", down).attr("width", right - left - 4).attr("height", tall);
    const name = (lane) => Math.max(down(lane), Math.min(0, down(lane) + tall(lane) - 40));  // in sight as long as its lane
    front.selectAll("g").attr("transform", (lane) => `translate(0,${name(lane)})`);
    front.selectAll(".plate").attr("height", (lane) => Math.max(0, Math.min(36, tall(lane) - 6)));
    front.selectAll(".lane-name").attr("y", (lane) => Math.min(17, tall(lane) / 2 + 4)).style("display", (lane) => (tall(lane) < 11 ? "none" : null));
    front.selectAll(".lane-facts").attr("y", 31).style("display", (lane) => (tall(lane) < 36 ? "none" : null));
    front.selectAll(".lane-host").attr("y", -5).style("display", transform.k < 0.6 ? "none" : null);
  }).filter((event) => (event.type === "wheel" ? event.ctrlKey || event.metaKey : event.touches ? event.touches.length > 1 : !event.button));
  svg.call(zoom).on("dblclick.zoom", null);
  /** As high as what is shown, within limits; lanes where they are now. */
  const settle = () => svg.attr("height", Math.max(160, Math.min(whole[1] * d3.zoomTransform(svg.node()).k, 900))).call(zoom.translateBy, 0, 0);
  /** Show all of it, but no smaller than `least`. */
  const fit = (least) => {
    const wide = frame.clientWidth, k = Math.min(1.15, Math.max(Math.min((wide - LEFT) / whole[0], 900 / whole[1]), least));
    svg.attr("viewBox", null).call(zoom.transform, d3.zoomIdentity.translate(LEFT, 0).scale(k));
    settle();
  };
  /** Move a box to the middle if it is out of sight. */
  const seek = (one) => {
    const [x, y] = d3.zoomTransform(svg.node()).apply([one.x, one.y]), out = y < 0 || y > svg.attr("height") - TALL;
    if (out || x < LEFT || x > frame.clientWidth - WIDE) svg.call(zoom.translateTo, one.x + one.wide / 2, one.y + one.tall / 2);
  };
  const open = (one) => {
    if (!one.inside.length) return;
    one.open = true; draw(); choose(unfold(one.inside)[0]); settle();
  };
  const fold = (one) => { one.open = false; draw(); choose(one); settle(); };
  const close = (one) => { if (one.open) fold(one); else if (one.parent) fold(one.parent); };
  const all = (opened) => { for (const one of nodes) one.open = opened && one.inside.length > 0 && !one.whole && !one.layers; chosen.node = null; draw(); fit(0.7); };

  const add = (tag, text, parent, name) => {
    const made = parent.appendChild(document.createElement(tag));
    made.textContent = text; if (name) made.className = name;
    return made;
  };
  const rows = (pairs, parent) => {
    const list = add("dl", "", parent);
    for (const [word, text] of pairs) if (text) { add("dt", word, list); add("dd", text, list); }
  };
  const choose = (one) => {
    chosen.node = one; mark(); panel.replaceChildren();
    if (!one) return;
    add("h3", title(one), panel);
    const tools = add("p", "", panel);
    if (one.inside.length && !one.open) add("button", one.whole ? "Open its layers" : "Open", tools).onclick = () => open(one);
    if (one.parent || one.open) add("button", one.open ? "Close its layers" : one.layers ? "Close layers" : "Close its block", tools).onclick = () => close(one);
    const own = members(one), part = parts[one.parts[0]], alone = own.length === 1 && !one.layers;
    const few = (its) => its.slice(0, 12).join("\n") + (its.length > 12 ? `\nand ${its.length - 12} more` : "");
    const flow = (from, to, way) => one.layers ? [] : links.filter((link) => one.parts.includes(link[to]) && !one.parts.includes(link[from]))
      .sort((a, b) => b[2] - a[2]).map((link) => `${way} ${parts[link[from]].name}: ${bytes(link[2] || link[3])}${link[5] ? " of weights" : ""}`);
    const phases = ["forward", "backward", "update"].map((word, n) => [word, sum(own.map((each) => each.seconds[n] || 0))]).filter((each) => each[1]);
    rows([
      ["part", one.layers && part.name],
      ["device", devices[one.device].name],
      ["reason", alone && part.reason],
      ["requested", alone && part.fallback?.requested],
      ["layers", few(one.layers || alone ? (one.layers ? own : part.layers).map((layer) => `${layer.name}: ${layer.kind}, ${layer.shapes.map(shape)}`) : names(one))],
      ["outputs", alone && part.shapes.map(shape).join(", ")],
      ["weights", bytes(sum(own.map((each) => each.weight_bytes)))],
      ["saved activations", bytes(sum(own.map((each) => each.activation_bytes)))],
      ["time per step", phases.map(([word, seconds]) => `${word} ${time(seconds)}`).join(", ")],
      ["inputs", few(flow(0, 1, "from"))],
      ["read by", few(flow(1, 0, "by"))],
      ["declared at", alone && part.where],
    ], panel);
    if (alone && part.kind !== "input") offer(one.parts[0]);
  };
  /** The table of what a part would cost on each other device. */
  const offer = (part) => {
    const its = data.moves[part], here = devices[place.get(parts[part].device)];
    if (!its) { add("p", "What a move costs is computed for the heaviest parts only.", panel, "quiet"); return; }
    const table = add("table", "", panel), head = add("tr", "", add("thead", "", table)), body = add("tbody", "", table);
    for (const word of ["device", { latency: "step", throughput: "busiest device", memory: "fullest device" }[data.objective], "memory there", "transfers"]) add("th", word, head);
    const stay = { device: here.name, value: data.value, fits: true, transfer_bytes: data.transferred, held_bytes: here.held };
    for (const one of [stay, ...its]) {
      const row = add("tr", "", body), choice = add("input", "", add("label", "", add("td", "", row)));
      choice.type = "radio"; choice.name = "move"; choice.checked = (moved.get(part) ?? here.name) === one.device;
      choice.parentNode.append(` ${one.device}`);
      choice.onchange = () => { if (one === stay) moved.delete(part); else moved.set(part, one.device); draw(); pins(); };
      const change = one.value / data.value - 1;
      const said = Math.abs(change) < 0.0005 ? "" : `, ${change < 0 ? "−" : "+"}${percent(Math.abs(change))}`;
      add("td", value(one.value) + said, row, change < -0.0005 ? "good" : "");
      add("td", `${one.estimated ? "≈ " : ""}${bytes(one.held_bytes)}${one.fits ? "" : ": too much"}`, row, one.fits ? "" : "alarm");
      add("td", bytes(one.transfer_bytes), row);
    }
    add("p", `Each line is for this move alone.${its.some((one) => one.estimated) ? " ≈ what the device holds now, and what the branch needs." : ""}`, panel, "quiet");
  };
  const pins = () => {
    const box = document.querySelector(".pins");
    box.hidden = !moved.size;
    const each = [...moved].map(([part, to]) => `${parts[part].pin}: ${JSON.stringify(to)}`);
    box.querySelector("input").value = `pins={${each.join(", ")}}`;
  };
  document.querySelector(".pins button").onclick = () => { document.querySelector(".pins input").select(); document.execCommand("copy"); };

  for (const button of document.querySelectorAll("[data-copy]")) button.onclick = () => {
    window.getSelection().selectAllChildren(button.previousElementSibling); document.execCommand("copy");
  };
  const search = document.querySelector(".search");
  const hits = () => {
    const wanted = search.value.toLowerCase(), holds = (text) => text.toLowerCase().includes(wanted);
    const found = wanted ? d3.range(parts.length).filter((n) => holds(parts[n].name) || parts[n].layers.some((layer) => holds(layer.name) || holds(layer.kind))) : [];
    return d3.sort(found, (n) => parts[n].name.toLowerCase() !== wanted);
  };
  const reveal = (part) => {
    const own = nodes.find((other) => other.whole && other.parts[0] === part);
    if (!own) return;
    for (let one = own.parent; one; one = one.parent) one.open = true;
    draw(); choose(own); settle(); seek(own);
  };
  search.oninput = () => { const its = hits(), set = new Set(its); for (const listen of page.listeners) listen(its.length ? set : null, its.length ? set : null); };
  search.onkeydown = (event) => { const its = hits(); if (event.key === "Enter" && its.length) { reveal(its[(its.indexOf(chosen.node?.parts[0]) + 1) % its.length]); search.focus(); } };
  window.addEventListener("keydown", (event) => { if (event.key === "/" && !/INPUT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); search.focus(); } });
  page.reveal = reveal;

  const step = (dx, dy) => {
    const from = chosen.node || shown[0];
    const way = (one) => [(one.x - from.x) * dx + (one.y - from.y) * dy, Math.abs((one.x - from.x) * dy) + Math.abs((one.y - from.y) * dx)];
    const near = d3.least(shown.filter((one) => way(one)[0] > 1), (one) => way(one)[0] + 3 * way(one)[1]) || from;
    choose(near); light(near.parts); seek(near);
  };
  const times = (factor) => svg.call(zoom.scaleBy, factor);
  const keys = {
    ArrowRight: () => step(1, 0), ArrowLeft: () => step(-1, 0), ArrowDown: () => step(0, 1), ArrowUp: () => step(0, -1),
    Enter: () => chosen.node && open(chosen.node), Escape: () => { light(null); if (chosen.node) close(chosen.node); },
    "+": () => times(1.25), "=": () => times(1.25), "-": () => times(0.8), 0: () => fit(0.02),
  };
  svg.on("keydown", (event) => { if (keys[event.key] && !event.ctrlKey && !event.metaKey) { keys[event.key](); event.preventDefault(); } });
  const does = { in: keys["+"], out: keys["-"], fit: keys[0], open: () => all(true), close: () => all(false) };
  for (const button of document.querySelectorAll("[data-do]")) button.onclick = () => does[button.dataset.do]();
  window.addEventListener("beforeprint", () => {
    svg.call(zoom.transform, d3.zoomIdentity.translate(LEFT, 0)).attr("viewBox", `0 0 ${whole[0] + LEFT} ${whole[1]}`).attr("height", null);
    for (const hidden of document.querySelectorAll("details")) hidden.open = true;
  });
  window.addEventListener("afterprint", () => fit(0.7));
  draw(); fit(0.7);
})();
