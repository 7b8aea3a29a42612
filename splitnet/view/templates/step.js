// The step: what each device computes and waits for, the critical path, and memory.
(() => {
  const LEFT = 244, RIGHT = 14, LANE = 30, THIN = 13, GAP = 8, CURVE = 74;
  const kinds = ["weights", "gradients", "optimizer slots", "activations", "receive buffers", "workspace"];
  const shade = (kind) => d3.interpolateViridis(0.05 + kind / 5.6);
  const frame = document.querySelector("#timeline .drawn"), tip = document.querySelector(".tip");
  const runs = [["planned", data.planned], ...(data.measured ? [["measured", data.measured]] : [])];
  for (const [, run] of runs) {
    const events = [...run.tasks, ...run.copies];  // spans have their numbers
    for (const spans of [run.path, ...Object.values(run.waits)]) for (const span of spans) span[0] = events[span[0]];
  }
  const called = (part) => parts[part]?.name ?? part;  // what was measured may not be in the plan
  const length = (its) => sum(its.map((one) => one.stop - one.start));
  const longest = d3.max(runs, ([, run]) => d3.max([...run.tasks, ...run.copies], (one) => one.stop)) || 1;
  const x = d3.scaleLinear([0, longest], [0, 1]);
  const computes = (device) => runs.some(([, run]) => run.tasks.some((one) => one.device === device.name && one.stop > one.start));
  const used = hosted(devices.filter(computes).map((device) => ({ device }))).map((lane) => lane.device);
  const lane = (event) => event.device || `${event.source_device} → ${event.target_device}`;
  const sent = d3.rollups(data.planned.copies, (its) => its, lane).sort((a, b) => Math.round(1e9 * (length(b[1]) - length(a[1])))).slice(0, 10);
  const says = (one) => one.device ? `the ${one.phase} of ${called(one.part)} on ${one.device} (${time(one.stop - one.start)})`
    : `the ${one.kind} of ${called(one.source)}, ${lane(one)} (${time(one.stop - one.start)})`;
  const look = (device, phase) => {
    const own = color(place.get(device)), dark = phase === "update", ink = d3.lab(devices[place.get(device)].color).l > 62 && !dark ? "#000" : "#fff";
    return phase === "backward" ? { fill: `color-mix(in srgb, ${own} 30%, var(--paper))`, stroke: own } : { fill: dark ? `color-mix(in srgb, ${own} 55%, black)` : own, stroke: "none", ink };
  };
  let range = x.domain();
  /** Neighbours of one look that are too narrow to be seen become one bar. */
  const merged = (bars) => {
    const found = [];
    for (const bar of bars) {
      const last = found.at(-1);
      if (last && last.key === bar.key && x(bar.start) - x(last.stop) < 0.7 && x(bar.stop) - x(bar.start) < 2 && x(last.stop) - x(last.start) < 40) {
        last.stop = Math.max(last.stop, bar.stop); last.parts.push(...bar.parts); last.count += 1;
      } else found.push({ ...bar, parts: [...bar.parts], count: 1 });
    }
    return found;
  };
  const bars = (svg, its, y, tall) => svg.append("g").selectAll("rect").data(merged(its.filter((one) => one.stop > range[0] && one.start < range[1]))).join("rect")
    .attr("class", "bar").attr("x", (one) => x(one.start)).attr("y", y).attr("height", tall)
    .attr("width", (one) => Math.max(0.8, x(one.stop) - x(one.start) - (one.parts.length && x(one.stop) - x(one.start) > 4 ? 0.6 : 0))).attr("fill", (one) => one.fill).attr("stroke", (one) => one.stroke)
    .on("pointerenter", (event, one) => { tell(event, one.text + (one.count > 1 ? `\nand ${one.count - 1} more` : "")); if (one.parts.length) light(one.parts); })
    .on("pointerleave", () => { tell(); light(null); }).on("click", (event, one) => one.parts.length && page.reveal(one.parts[0]));
  const tell = (event, text) => {
    tip.hidden = !text; if (!text) return;
    tip.textContent = text; tip.style.left = `${Math.min(event.clientX + 12, innerWidth - 330)}px`; tip.style.top = `${event.clientY + 14}px`;
  };
  const words = (svg, text, left, y, name) => svg.append("text").attr("x", left).attr("y", y).attr("class", name || "").text(text);
  const wide = () => Math.max(frame.clientWidth, 560);
  const start = (parent, tall) => {
    const svg = d3.select(parent).append("svg").attr("width", wide()).attr("height", tall);
    svg.append("clipPath").attr("id", `clip-${tall}`).append("rect").attr("x", LEFT).attr("width", wide() - LEFT - RIGHT).attr("height", tall);
    return [svg, svg.append("g").attr("clip-path", `url(#clip-${tall})`)];
  };
  /** The lane of a device in a run: gaps and bars; its shares in words at the left. */
  const lanes = (run, { name }, y, plot, svg) => {
    const gaps = run.waits[name].map(([event, start, stop]) => {
      const copy = event && !event.device;
      return { key: copy, copy, start, stop, parts: [], fill: copy ? "var(--wait)" : "var(--soft)", stroke: "none", text: event ? `${name} waits for ${says(event)}` : `${name} is idle` };
    });
    bars(plot, gaps, y, LANE);
    const pipelined = run.tasks.some((one) => one.microbatch);
    const tasks = run.tasks.filter((one) => one.device === name && one.stop > one.start).map((one) => ({
      ...one, ...look(name, one.phase), key: one.phase, parts: parts[one.part] ? [one.part] : [],
      text: `${called(one.part)}\n${one.phase} on ${name}${pipelined ? `, micro-batch ${one.microbatch}` : ""}\n${time(one.stop - one.start)} from ${time(one.start)}`,
    }));
    bars(plot, tasks, y + 2, LANE - 4);
    for (const one of tasks) {
      const room = x(one.stop) - x(one.start), said = !pipelined ? called(one.part) : one.phase === "update" ? "" : `#${one.microbatch}`;
      const most = Math.floor((room - 8) / 6.5);
      if (said && most >= Math.min(said.length, 7) && x(one.start) >= LEFT) words(plot, fitted(said, most, room - 4), (x(one.start) + x(one.stop)) / 2, y + LANE / 2 + 4, "inside").style("fill", one.ink);
    }
    const all = d3.max(run.tasks, (one) => one.stop) || 1, busy = length(tasks) / all, copies = length(gaps.filter((one) => one.copy)) / all;
    for (const [share, fill] of [[1, "var(--soft)"], [busy + copies, "var(--wait)"], [busy, color(place.get(name))]])
      svg.append("rect").attr("x", 4).attr("y", y + 14).attr("width", share * 176).attr("height", 5).attr("fill", fill);
    words(svg, `computing ${percent(busy)}` + (run.copies.length ? `, copies ${percent(copies)}, others ${percent(Math.max(0, 1 - busy - copies))}` : ""), 4, y + 28, "small");
  };
  const draw = () => {
    x.range([LEFT, wide() - RIGHT]).domain(range);
    frame.replaceChildren();
    const tall = 34 + used.length * (runs.length * (LANE + 2) + GAP) + sent.length * THIN + 12;
    const [svg, plot] = start(frame, tall), middle = new Map();
    const [size, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "us"]].find(([seconds]) => range[1] >= seconds) || [1e-9, "ns"];
    const axis = d3.axisTop(x).ticks(wide() / 130).tickFormat((seconds) => `${+(seconds / size).toPrecision(6)} ${unit}`).tickSizeInner(-tall);
    svg.insert("g", "g").attr("class", "axis").attr("transform", "translate(0,22)").call(axis);
    const brush = d3.brushX().extent([[LEFT, 0], [wide() - RIGHT, 22]]).on("end", ({ selection }) => { if (selection) { range = selection.map(x.invert); draw(); } });
    svg.append("g").attr("class", "brush").call(brush).append("title").text("drag to zoom, double click for the whole step");
    svg.on("dblclick", () => { range = [0, longest]; draw(); });
    let y = 30;
    for (const device of used) {
      words(svg, device.name, 4, y + 10, "lane-name");
      middle.set(device.name, y + LANE - 5);
      runs.forEach(([name, run], turn) => {
        lanes(run, device, y, plot, turn ? d3.create("svg") : svg);
        if (turn) words(svg, name, 4, y + 16, "small");
        y += LANE + 2;
      });
      y += GAP;
    }
    for (const [ends, its] of sent) {
      words(svg, `${ends}, ${bytes(sum(its.map((one) => one.bytes)))}`, 4, y + 9, "small");
      bars(plot, its.map((one) => ({
        ...one, ...look(one.source_device, one.kind.includes("gradient") && "backward"), key: one.kind, parts: [one.source, one.target],
        text: `${one.kind}, ${called(one.source)} → ${called(one.target)}\n${bytes(one.bytes)} in ${time(one.stop - one.start)}`,
      })), y + 1, THIN - 4);
      middle.set(ends, y + THIN / 2 - 1);
      y += THIN;
    }
    // One line, from bar to copy to bar; what is too narrow to be seen is joined, in the lane with most of it.
    let path = "", last = null, begun = null;
    const spent = new Map();
    for (const [event, from, to] of data.planned.path) {
      const own = event && (event.device || used.length <= 16) && middle.get(lane(event));
      begun ??= from;
      if (own) spent.set(own, (spent.get(own) || 0) + to - from);
      if (x(to) - x(begun) < 1.5 || !spent.size) continue;
      const [most] = d3.greatest(spent, (one) => one[1]);
      path += (last === null ? `M${x(begun)} ${most}` : most === last ? "" : `H${x(begun)}V${most}`) + `H${x(to)}`;
      last = most; begun = null; spent.clear();
    }
    plot.append("path").attr("class", "path under").attr("d", path);
    plot.append("path").attr("class", "path").attr("d", path).append("title").text("critical path");
    memory();
  };
  const memory = () => {
    const parent = document.querySelector("#memory .drawn"), share = (at) => devices[at].held / devices[at].limit;
    parent.replaceChildren();
    const its = d3.range(devices.length).filter((at) => devices[at].held).sort((a, b) => share(b) - share(a)).slice(0, 16);
    const most = d3.max(its, share), top = most > 1 ? most * 1.05 : Math.min(1, d3.nice(0, most || 1, 3)[1]), y = d3.scaleLinear([0, top], [CURVE - 10, 4]);
    const [svg, plot] = start(parent, its.length * CURVE + 20);
    its.forEach((at, row) => {
      const { limit, held, name } = devices[at], { curve, largest } = data.memory[at], lane = plot.append("g").attr("transform", `translate(0,${row * CURVE})`);
      const points = [[0, ...new Array(6).fill(0)], ...curve, [longest, ...curve.at(-1).slice(1)]], g = svg.append("g").attr("transform", `translate(0,${row * CURVE})`);
      const layers = d3.stack().keys(d3.range(6)).value((one, n) => one[n + 1] / limit)(points);
      const area = d3.area().x((one) => x(one.data[0])).y0((one) => y(one[0])).y1((one) => y(one[1])).curve(d3.curveStepAfter);
      lane.selectAll("path").data(layers).join("path").attr("d", area).attr("fill", (layer) => shade(layer.index));
      g.append("g").attr("class", "axis").attr("transform", `translate(${LEFT},0)`).call(d3.axisLeft(y).ticks(3).tickFormat((one) => `${+(100 * one).toPrecision(3)} %`).tickSizeInner(-(wide() - LEFT - RIGHT)));
      if (top >= 1) g.append("line").attr("class", "limit").attr("x1", LEFT).attr("x2", wide() - RIGHT).attr("y1", y(1)).attr("y2", y(1));
      const over = held > limit, tone = over ? "alarm" : "small";
      words(g, name, 4, 14, "lane-name"); words(g, bytes(held), 4, 30, tone); words(g, `${percent(held / limit)} of ${bytes(limit)}${over ? ": too much" : ""}`, 4, 44, tone);
      const said = largest.map(([kind, part, size]) => `${bytes(size)} ${kinds[kind]} of ${parts[part].name}`);
      lane.on("pointermove", (event) => tell(event, [`${name} at its fullest:`, ...said].join("\n"))).on("pointerenter", () => light(largest.map((one) => one[1]))).on("pointerleave", () => { tell(); light(null); });
      page.listeners.push((lit, own) => g.classed("dim", own && !d3.some(own, (part) => parts[part].device === name)));
    });
    const peaks = d3.select("#memory .peaks").selectAll("li").data(its.slice(0, 8)).join("li");
    peaks.text((at) => `${devices[at].name}: ${data.memory[at].largest.map(([kind, part, size]) => `${kinds[kind]} of ${parts[part].name} ${bytes(size)}`).join(", ")}`);
    d3.select("#memory .legend").selectAll("span").data(kinds).join("span").html((kind, n) => `<i style="background:${shade(n)}"></i>${kind} `);
  };
  page.listeners.push((lit, own) => d3.select(frame).selectAll(".bar").classed("dim", (one) => own && !(one.parts.length && one.parts.some((part) => own.has(part)))));
  document.querySelector("[data-whole]").onclick = () => { range = [0, longest]; draw(); };
  draw();
  window.addEventListener("resize", draw);

  // Tables: rows follow the pointer and lead to the explorer; heads sort.
  const named = new Map(parts.map((part, n) => [part.name, n]));
  for (const row of document.querySelectorAll("#part-rows tr")) {
    const part = named.get(row.dataset.name);
    row.onpointerenter = () => light([part]); row.onpointerleave = () => light(null); row.onclick = () => page.reveal(part);
    page.listeners.push((lit, own) => row.classList.toggle("chosen", Boolean(own && own.has(part))));
  }
  const units = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, PiB: 2 ** 50, ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, "%": 1 };
  const size = (text) => {
    const found = text.match(/^<?(-|[\d.]+)\s*([A-Za-z%]*)/);
    return found ? (found[1] === "-" ? 0 : found[1] * (units[found[2]] || 1)) : NaN;
  };
  for (const head of document.querySelectorAll(".sorted th")) {
    head.tabIndex = 0;
    head.onkeydown = (event) => { if (event.key === "Enter") head.onclick(); };
    head.onclick = () => {
      const at = head.cellIndex, body = head.closest("table").tBodies[0], text = (row) => row.cells[at].textContent;
      const down = head.dataset.down = head.dataset.down ? "" : "1", figures = head.classList.contains("n");
      const order = figures ? (a, b) => size(text(b)) - size(text(a)) : (a, b) => text(a).localeCompare(text(b), undefined, { numeric: true });
      body.append(...[...body.rows].sort((a, b) => (down ? 1 : -1) * order(a, b)));
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", figures === Boolean(down) ? "descending" : "ascending");
    };
  }
})();
