// The step: what each device computes and waits for, the critical path, and memory.
(() => {
  const LEFT = 244, RIGHT = 14, LANE = 30, THIN = 13, GAP = 8, CURVE = 74;
  const kinds = ["weights", "gradients", "optimizer slots", "activations", "receive buffers", "workspace"];
  const shade = (kind) => d3.interpolateViridis(0.05 + kind / 5.6);
  const frame = document.querySelector("#timeline .drawn"), tip = document.querySelector(".tip");
  const runs = [["planned", data.planned], ...(data.measured ? [["measured", data.measured]] : [])];
  const longest = d3.max(runs, ([, run]) => d3.max([...run.tasks.map((one) => one[4]), ...run.copies.map((one) => one[7])])) || 1;
  const x = d3.scaleLinear([0, longest], [0, 1]);
  const used = devices.map((device, at) => at).filter((at) => runs.some(([, run]) => run.tasks.some((one) => one[1] === at && one[4] > one[3])));
  const sent = d3.rollups(data.planned.copies, (its) => its, (one) => one[2] * devices.length + one[3])
    .sort((a, b) => sum(b[1].map((one) => one[7] - one[6])) - sum(a[1].map((one) => one[7] - one[6]))).slice(0, 10);
  const says = (run, at) => {
    const task = run.tasks[at], copy = run.copies[at - run.tasks.length];
    if (task) return `the ${data.phases[task[2]]} of ${parts[task[0]]?.name} on ${devices[task[1]].name} (${time(task[4] - task[3])})`;
    return copy ? `the ${copy[4]} of ${parts[copy[0]].name}, ${devices[copy[2]].name} → ${devices[copy[3]].name} (${time(copy[7] - copy[6])})` : "nothing";
  };
  const look = (device, phase) => {
    const own = color(device), ink = d3.lab(devices[device].color).l > 62 && phase !== 2 ? "#000" : "#fff";
    return phase === 1 ? { fill: `color-mix(in srgb, ${own} 30%, var(--paper))`, stroke: own } : { fill: phase === 2 ? `color-mix(in srgb, ${own} 55%, black)` : own, stroke: "none", ink };
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
    .attr("class", (one) => `bar ${one.name || ""}`).attr("x", (one) => x(one.start)).attr("y", y).attr("height", tall)
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
  const device = (run, at, y, tall, plot, svg) => {
    const gaps = run.waits[at].map(([event, start, stop]) => ({
      key: event >= run.tasks.length ? 1 : 2, start, stop, parts: [], fill: event >= run.tasks.length ? "var(--wait)" : "var(--soft)", stroke: "none",
      copy: event >= run.tasks.length, text: event < 0 ? `${devices[at].name} is idle` : `${devices[at].name} waits for ${says(run, event)}`,
    }));
    bars(plot, gaps, y, tall);
    const tasks = run.tasks.filter((one) => one[1] === at && one[4] > one[3]).map(([part, , phase, start, stop, piece]) => ({
      key: phase, start, stop, ...look(at, phase), parts: part < 0 ? [] : [part], piece, phase,
      text: `${parts[part]?.name}\n${data.phases[phase]} on ${devices[at].name}${run.pipelined ? `, micro-batch ${piece}` : ""}\n${time(stop - start)} from ${time(start)}`,
    }));
    bars(plot, tasks, y + 2, tall - 4);
    for (const one of tasks) {
      const room = x(one.stop) - x(one.start), name = run.pipelined ? (one.phase === 2 ? "" : `#${one.piece}`) : parts[one.parts[0]]?.name || "";
      if (name && room > name.length * 6 + 8 && x(one.start) >= LEFT) words(plot, name, (x(one.start) + x(one.stop)) / 2, y + tall / 2 + 4, `inside${one.phase === 1 ? " pale" : ""}`).style("fill", one.ink);
    }
    const all = d3.max(run.tasks, (one) => one[4]) || 1, busy = sum(tasks.map((one) => one.stop - one.start)) / all;
    const copies = sum(gaps.filter((one) => one.copy).map((one) => one.stop - one.start)) / all, share = (from, to, fill) => svg.append("rect").attr("x", 4 + from * 176).attr("y", y + 14).attr("width", Math.max(0, to - from) * 176).attr("height", 5).attr("fill", fill);
    share(0, 1, "var(--soft)"); share(busy, busy + copies, "var(--wait)"); share(0, busy, color(at));
    words(svg, run.copies.length ? `computing ${percent(busy)}, copies ${percent(copies)}, others ${percent(Math.max(0, 1 - busy - copies))}` : `computing ${percent(busy)}`, 4, y + 28, "small");
  };
  const draw = () => {
    x.range([LEFT, wide() - RIGHT]).domain(range);
    frame.replaceChildren();
    const both = runs.length > 1 ? 2 : 1, tall = 34 + used.length * (both * (LANE + 2) + GAP) + sent.length * THIN + 12;
    const [svg, plot] = start(frame, tall), lanes = new Map();
    const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]].find(([ns]) => range[1] >= ns) || [1, "ns"];
    const axis = d3.axisTop(x).ticks(wide() / 130).tickFormat((ns) => `${+(ns / size).toPrecision(6)} ${unit}`).tickSizeInner(-tall);
    svg.insert("g", "g").attr("class", "axis").attr("transform", "translate(0,22)").call(axis);
    const brush = d3.brushX().extent([[LEFT, 0], [wide() - RIGHT, 22]]).on("end", ({ selection }) => { if (selection) { range = selection.map(x.invert); draw(); } });
    svg.append("g").attr("class", "brush").call(brush).append("title").text("drag to zoom, double click for the whole step");
    svg.on("dblclick", () => { range = [0, longest]; draw(); });
    let y = 30;
    for (const at of used) {
      words(svg, devices[at].name, 4, y + 10, "lane-name");
      runs.forEach(([name, run], turn) => {
        if (!turn) lanes.set(`device ${at}`, y + LANE - 5);
        device(run, at, y + turn * (LANE + 2), LANE, plot, turn ? d3.create("svg") : svg);
        if (turn) words(svg, name, 4, y + LANE + 18, "small");
      });
      y += both * (LANE + 2) + GAP;
    }
    for (const [, its] of sent) {
      const [, , source, target] = its[0];
      words(svg, `${devices[source].name} → ${devices[target].name}, ${bytes(sum(its.map((one) => one[5])))}`, 4, y + 9, "small");
      bars(plot, its.map((one) => ({ key: one[4], start: one[6], stop: one[7], ...look(source, +one[4].includes("gradient")), parts: [one[0], one[1]], text: `${one[4]}, ${parts[one[0]].name} → ${parts[one[1]].name}\n${bytes(one[5])} in ${time(one[7] - one[6])}` })), y + 1, THIN - 4);
      lanes.set(`link ${source} ${target}`, y + THIN / 2 - 1);
      y += THIN;
    }
    // One line, from bar to copy to bar; what is too narrow or not drawn is passed over.
    let path = "", last = null;
    for (const [event, from, to] of data.planned.path) {
      const task = data.planned.tasks[event], copy = data.planned.copies[event - data.planned.tasks.length];
      const at = lanes.get(task ? `device ${task[1]}` : copy ? `link ${copy[2]} ${copy[3]}` : "");
      if (at === undefined || (last !== null && x(to) - x(from) < 1.5)) continue;
      path += last === null ? `M${x(from)} ${at}` : at === last ? "" : `H${x(from)}V${at}`;
      path += `H${x(to)}`; last = at;
    }
    plot.append("path").attr("class", "path under").attr("d", path);
    plot.append("path").attr("class", "path").attr("d", path).append("title").text("critical path");
    memory();
  };
  const memory = () => {
    const parent = document.querySelector("#memory .drawn"), share = (at) => devices[at].held / devices[at].limit;
    parent.replaceChildren();
    const its = devices.map((device, at) => at).filter((at) => devices[at].held).sort((a, b) => share(b) - share(a)).slice(0, 16);
    const most = d3.max(its, share), top = [0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1].find((one) => most <= one) || most * 1.05, y = d3.scaleLinear([0, top], [CURVE - 10, 4]);
    const [svg, plot] = start(parent, its.length * CURVE + 20);
    its.forEach((at, row) => {
      const { limit, held, name } = devices[at], { curve, largest } = data.memory[at], lane = plot.append("g").attr("transform", `translate(0,${row * CURVE})`);
      const points = [[0, ...new Array(6).fill(0)], ...curve, [longest, ...curve.at(-1).slice(1)]], g = svg.append("g").attr("transform", `translate(0,${row * CURVE})`);
      const layers = d3.stack().keys(kinds.map((kind, n) => n)).value((one, n) => one[n + 1] / limit)(points);
      const area = d3.area().x((one) => x(one.data[0])).y0((one) => y(one[0])).y1((one) => y(one[1])).curve(d3.curveStepAfter);
      lane.selectAll("path").data(layers).join("path").attr("d", area).attr("fill", (layer) => shade(layer.index));
      g.append("g").attr("class", "axis").attr("transform", `translate(${LEFT},0)`).call(d3.axisLeft(y).ticks(3).tickFormat((one) => percent(one)).tickSizeInner(-(wide() - LEFT - RIGHT)));
      if (top >= 1) g.append("line").attr("class", "limit").attr("x1", LEFT).attr("x2", wide() - RIGHT).attr("y1", y(1)).attr("y2", y(1));
      words(g, name, 4, 14, "lane-name"); words(g, bytes(held), 4, 30, held > limit ? "alarm" : "small"); words(g, `${percent(held / limit)} of ${bytes(limit)}${held > limit ? ": too much" : ""}`, 4, 44, held > limit ? "alarm" : "small");
      const text = `${name} at its fullest:\n${largest.map(([kind, part, size]) => `${bytes(size)} ${kinds[kind]} of ${parts[part].name}`).join("\n")}`;
      lane.on("pointermove", (event) => tell(event, text)).on("pointerenter", () => light(largest.map((one) => one[1]))).on("pointerleave", () => { tell(); light(null); });
      page.listeners.push((lit, own) => g.classed("dim", own && !d3.some(own, (part) => parts[part].device === at)));
    });
    const peaks = document.querySelector("#memory .peaks");
    peaks.replaceChildren(...its.slice(0, 8).map((at) => {
      const item = document.createElement("li");
      item.textContent = `${devices[at].name}: ${data.memory[at].largest.map(([kind, part, size]) => `${kinds[kind]} of ${parts[part].name} ${bytes(size)}`).join(", ")}`;
      return item;
    }));
    const legend = document.querySelector("#memory .legend");
    legend.replaceChildren(...kinds.flatMap((kind, n) => { const dot = document.createElement("i"); dot.style.background = shade(n); return [dot, `${kind} `]; }));
  };
  page.listeners.push((lit, own) => d3.select(frame).selectAll(".bar").classed("dim", (one) => own && !(one.parts.length && one.parts.some((part) => own.has(part)))));
  document.querySelector("[data-whole]").onclick = () => { range = [0, longest]; draw(); };
  draw();
  window.addEventListener("resize", draw);

  // Tables: rows follow the pointer and lead to the explorer; heads sort.
  const number = new Map(parts.map((part, n) => [part.name, n]));
  for (const row of document.querySelectorAll("#part-rows tr")) {
    const part = number.get(row.dataset.name);
    if (part === undefined) continue;
    row.onpointerenter = () => light([part]); row.onpointerleave = () => light(null); row.onclick = () => page.reveal(part);
    page.listeners.push((lit, own) => row.classList.toggle("chosen", Boolean(own && own.has(part))));
  }
  const units = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, "%": 1 };
  const size = (text) => {
    const found = text.match(/^<?(-|[\d.]+)\s*([A-Za-z%]*)/);
    return found ? (found[1] === "-" ? 0 : found[1] * (units[found[2]] || 1)) : NaN;
  };
  for (const head of document.querySelectorAll(".sorted th")) head.onclick = () => {
    const at = head.cellIndex, body = head.closest("table").tBodies[0], text = (row) => row.cells[at].textContent;
    const down = head.dataset.down = head.dataset.down ? "" : "1";
    const order = head.classList.contains("n") ? (a, b) => size(text(b)) - size(text(a)) : (a, b) => text(a).localeCompare(text(b), undefined, { numeric: true });
    body.append(...[...body.rows].sort((a, b) => (down ? 1 : -1) * order(a, b)));
  };
})();
