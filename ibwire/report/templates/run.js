"use strict";
(() => {
  const { data, byId, make, grouped, colour, legendRows, themedAxes, themed, CONFIG, load, follow } = shared;
  const SVG = "http://www.w3.org/2000/svg";

  function shape(tag, options, ...children) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(options)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  const percent = (share) => `${share && share < 0.01 ? "<1" : Math.round(100 * share)} %`;

  function table(section, names, rows) {
    const found = section.querySelector("table");
    found.tHead.replaceChildren(make("tr", {}, ...names.map(([name, kind]) => make("th", { class: kind }, name))));
    found.tBodies[0].replaceChildren(...rows.map((cells) => make("tr", {},
      ...cells.map((cell, index) => make("td", { class: names[index][1] }, cell)))));
  }

  function inTheme({ layout, data: traces }, plot) {
    const axes = themedAxes(layout);
    const narrow = plot.clientWidth < 640;
    if (narrow && axes.xaxis.tickvals) {
      const kept = (_, index) => index % 2 === 0;
      axes.xaxis = { ...axes.xaxis, tickvals: axes.xaxis.tickvals.filter(kept), ticktext: axes.xaxis.ticktext.filter(kept) };
    }
    const left = narrow ? Math.min(64, layout.margin.l) : layout.margin.l;
    const names = traces.filter(({ showlegend }) => showlegend !== false).map(({ name }) => name);
    const rows = legendRows(names, plot.clientWidth - left - layout.margin.r);
    return themed(layout, axes, { narrow, left, below: rows ? 22 * rows + 10 : 0, wide: 48 });
  }

  function draw() {
    network();
    if (!window.Plotly) return;
    for (const id of ["times", "fct", "slowdown"]) {
      const figure = data[id];
      if (!figure) continue;
      const plot = byId(id).querySelector(".plot");
      const traces = figure.data.map((trace) => ({ ...trace, line: { ...trace.line, color: colour(trace.meta.role) } }));
      Plotly.newPlot(plot, traces, inTheme(figure, plot), CONFIG);
    }
  }

  // The network: hosts below, switches above, links as thick and warm as they were busy.

  function network() {
    const found = data.topology;
    const svg = byId("network").querySelector("svg");
    svg.replaceChildren();
    svg.parentElement.hidden = !found;
    if (!found) return;
    const widest = Math.max(...found.nodes.map((node) => node.row));
    const width = Math.max(320, Math.min(1400, svg.parentElement.clientWidth), widest * 15);
    const height = 110 + 110 * (found.levels - 1 || 1);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const places = new Map(found.nodes.map((node) => [node.name, [
      20 + node.x * (width - 40),
      found.levels > 1 ? height - 40 - 110 * node.level : height / 2,
    ]]));
    const level = new Map(found.nodes.map((node) => [node.name, node.level]));
    const labels = [];
    // Links of one row would run through the nodes between: half of the height of their arc's control point.
    const bend = ({ a, b }) => (level.get(a) === level.get(b) && found.levels > 1
      ? Math.min(25, Math.abs(places.get(a)[0] - places.get(b)[0]) / 5) : 0);
    const busiest = [...found.links].sort((one, other) => Math.max(other.there, other.back) - Math.max(one.there, one.back));
    for (const link of [...busiest].reverse()) {
      const [[x0, y0], [x1, y1]] = [places.get(link.a), places.get(link.b)];
      const load = Math.max(link.there, link.back);
      const heat = load > 0.8 ? "hot" : load > 0.4 ? "warm" : load > 0.02 ? "cool" : "idle";
      const path = `M${x0} ${y0} Q${(x0 + x1) / 2} ${(y0 + y1) / 2 - 2 * bend(link)} ${x1} ${y1}`;
      svg.append(shape("path", {
        d: path, class: `wire ${heat}`, "stroke-width": 1 + 5 * load, "stroke-dasharray": link.held > 0.01 ? "7 4" : "none",
      }, shape("title", {}, `${link.a} → ${link.b} ${percent(link.there)}, ${link.b} → ${link.a} ${percent(link.back)}, paused ${percent(link.held)} of the time`)));
    }
    for (const link of busiest.slice(0, 4)) {
      const [[x0, y0], [x1, y1]] = [places.get(link.a), places.get(link.b)];
      const load = Math.max(link.there, link.back);
      const x = (x0 + x1) / 2, y = (y0 + y1) / 2 - bend(link);
      if (load < 0.02 || labels.some(([u, v]) => Math.abs(u - x) < 46 && Math.abs(v - y) < 18)) continue;
      labels.push([x, y]);
      svg.append(shape("text", { x, y: y + 4, class: "load" }, percent(load)));
    }
    for (const node of found.nodes) {
      const [x, y] = places.get(node.name);
      const room = (width - 40) / node.row;
      svg.append(node.kind === "host"
        ? shape("circle", { cx: x, cy: y, r: Math.min(7, room / 2.6), class: "host" }, shape("title", {}, node.name))
        : shape("rect", { x: x - 11, y: y - 7, width: 22, height: 14, rx: 3, class: "switch" }, shape("title", {}, node.name)));
      if (room >= 7 * node.name.length + 6) {
        svg.append(shape("text", { x, y: node.kind === "host" ? y + 22 : y - 12, class: "name" }, node.name));
      }
    }
  }

  // Sections.

  function summary() {
    document.title = `${data.title} – ibwire report`;
    byId("title").textContent = data.title;
    byId("footer").textContent = `Made by ibwire ${data.version}. Times count from the start of the run.`;
    const headline = byId("headline");
    headline.className = `headline level-${data.passed ? "ok" : "failed"}`;
    const [badge, text] = headline.children;
    badge.className = `badge level-${data.passed ? "ok" : "failed"}`;
    const failed = data.expectations.filter((each) => !each.passed).length;
    badge.textContent = data.passed ? "as expected" : `${failed} of ${data.expectations.length} expectations not met`;
    text.textContent = data.description;
    byId("facts").replaceChildren(...data.facts.map(([name, value]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, value))));
    byId("tiles").replaceChildren(...data.tiles.map(([name, value, role]) =>
      make("li", { role, class: /^0( B|$)/.test(value) ? "none" : "" }, make("b", {}, value), make("span", {}, name))));
    byId("notes").replaceChildren(...data.notes.map((text) => make("li", {}, text)));
  }

  function expectations() {
    const section = byId("expectations");
    section.hidden = !data.expectations.length;
    table(section, [["", "name"], ["expected", "wide"], ["is", "number"]], data.expectations.map((each) => [
      make("span", { class: each.passed ? "note" : "error" }, each.passed ? "met" : "not met"),
      each.connection ? `${each.connection}: ${each.expected}` : each.expected,
      each.actual,
    ]));
  }

  function tables() {
    byId("network").hidden = !data.links.length;
    table(byId("network"), [["from", "name"], ["to", "name"], ["rate", "number"], ["bytes", "number"], ["load", "number"], ["longest paused priority", "number"]],
      data.links.map((each) => [each.from, each.to, each.rate, grouped(each.bytes), percent(each.load), each.paused]));
    const section = byId("completion");
    section.hidden = !data.flows.length;
    table(section, [["flow", "name"], ["from", "name"], ["to", "name"], ["status", "name"], ["bytes", "number"], ["start", "number"], ["completion time", "number"], ["slowdown", "number"], ["goodput", "number"], ["retransmitted", "number"], ["CNPs", "number"]],
      data.flows.map((each) => [`${each.connection} ${each.index}`, each.source, each.target, each.status, grouped(each.bytes), each.start, each.fct, each.slowdown, each.goodput, grouped(each.retransmitted), grouped(each.cnps)]));
    for (const id of ["times", "fct", "slowdown"]) byId(id).hidden = !data[id];
  }

  addEventListener("resize", network);

  summary();
  expectations();
  tables();
  follow(draw, (width) => document.querySelectorAll("#times .plot").forEach((plot) => { plot.style.width = width; }));
  draw();
  load(draw);
})();
