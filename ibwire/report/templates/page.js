"use strict";
(() => {
  const { data, byId, make, grouped, colour, legendRows, themedAxes, themed, CONFIG, load, follow } = shared;
  const plot = byId("plot");
  let shown = null; // number of the connection in the plot

  const rounded = (value) => Number(value.toPrecision(3)).toLocaleString("en");

  function scaled(value, steps) {
    const [size, unit] = steps.find(([size]) => value >= size) || steps[steps.length - 1];
    return `${rounded(value / size)} ${unit}`;
  }

  const time = (ns) => scaled(ns, [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]]);
  const rate = (bps) => scaled(bps, [[1e9, "Gb/s"], [1e6, "Mb/s"], [1e3, "kb/s"], [1, "b/s"]]);
  const shares = (share) => (share ? `${rounded(100 * share)} %` : "0");
  const SHOW = { count: grouped, trouble: grouped, rate, share: shares, time };

  function facts(list, pairs) {
    list.replaceChildren(...pairs.map(([name, value]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  }

  function heading(table, names) {
    table.tHead.replaceChildren(make("tr", {}, ...names.map((name) => make("th", {}, name))));
  }

  function painted(trace) {
    const own = colour(trace.meta.role);
    const line = { ...(trace.line || {}), color: own };
    return { ...trace, marker: { ...trace.marker, color: own }, line };
  }

  function inTheme({ layout, data: traces }) {
    const axes = themedAxes(layout);
    const narrow = plot.clientWidth < 640;
    if (narrow) {
      const title = { text: layout.xaxis.title.text.replace(" since the first packet of the capture", "") };
      axes.xaxis = { ...axes.xaxis, title };
    }
    const left = narrow ? 64 : layout.margin.l;
    const names = traces.filter(({ showlegend }) => showlegend).map(({ name }) => name);
    const rows = Math.max(1, legendRows(names, plot.clientWidth - left - layout.margin.r));
    return themed(layout, axes, { narrow, left, below: 12 + 20 * rows, wide: 52 });
  }

  function draw() {
    if (shown === null || !window.Plotly) return;
    const figure = data.connections[shown].figure;
    plot.hidden = byId("plot-hint").hidden = !figure.data.length; // only messages of a connection manager
    if (plot.hidden) {
      Plotly.purge(plot);
      return;
    }
    const traces = figure.data.map((trace) => painted(
      trace.text ? { ...trace, text: trace.text.map((index) => data.words[index]) } : trace));
    Plotly.newPlot(plot, traces, inTheme(figure), CONFIG);
    plot.removeAllListeners("plotly_click");
    plot.on("plotly_click", ({ points: [point] }) => point.customdata && pick(point.customdata[0]));
  }

  // Places in the plot.

  function placeOf(number) {
    const spot = data.spots[number];
    if (spot && spot[0] === shown) return spot.slice(1);
    const event = data.connections[shown].events.find((each) => each.number === number);
    if (event) return event.place;
    for (const trace of plot.calcdata || []) {
      const point = trace.find((each) => each.data && each.data[0] === number);
      const full = trace[0].trace;
      if (point && full.yaxis) return [point.x, full.hovertemplate.includes("PSN") ? full.yaxis : null, point.y];
    }
    return null;
  }

  function highlight([x, axis, y]) {
    const layout = data.connections[shown].figure.layout;
    const [first, last] = layout.xaxis.range;
    const half = (last - first) / 24;
    const mark = { color: colour("accent"), width: 1.5, dash: "dot" };
    const shapes = [{ type: "line", xref: "x", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: mark, layer: "below" }];
    const change = { shapes, "xaxis.range": [x - half, x + half] };
    if (axis) {
      const ring = { color: colour("accent"), width: 2 };
      shapes.push({
        type: "circle", xref: "x", yref: axis, xsizemode: "pixel", ysizemode: "pixel",
        xanchor: x, yanchor: y, x0: -11, x1: 11, y0: -11, y1: 11, line: ring,
      });
      const heights = near(axis, x - half, x + half).concat(y);
      const low = Math.min(...heights), high = Math.max(...heights);
      const room = Math.max((high - low) * 0.08, 2);
      change[`yaxis${axis.slice(1)}.range`] = [low - room, high + room];
    }
    Plotly.relayout(plot, change);
  }

  function near(axis, first, last) {
    const heights = [];
    for (const points of plot.calcdata || []) {
      if ((points[0].trace.yaxis || "y") !== axis) continue;
      for (const { x, y } of points) if (x >= first && x <= last && typeof y === "number") heights.push(y);
    }
    return heights;
  }

  function pick(number) {
    const place = placeOf(number);
    const picked = byId("picked");
    picked.hidden = false;
    picked.replaceChildren(`Packet ${grouped(number)}, in Wireshark: `, make("code", {}, `frame.number == ${number}`));
    if (!place) picked.append(" (it is not in the plots)");
    for (const row of document.querySelectorAll("#events tr.picked")) row.classList.remove("picked");
    const row = document.querySelector(`#events tr[data-number="${number}"]`);
    if (row) {
      row.classList.add("picked");
      const list = row.closest(".scroll");
      list.scrollTop = row.offsetTop - list.clientHeight / 2;
    }
    if (place && !plot.hidden) highlight(place);
  }

  function reveal(number, connection) {
    if (connection && data.connections[connection] && connection !== shown) select(connection);
    pick(number);
    plot.scrollIntoView({ block: "start" });
  }

  function packet(number, connection) {
    if (!data.connections[connection]) return make("span", {}, `${number}`);
    const link = make("a", { href: `#packet-${number}` }, `${number}`);
    link.addEventListener("click", (event) => {
      event.preventDefault();
      event.stopPropagation();
      reveal(number, connection);
    });
    return link;
  }

  function packets(numbers, count, connection) {
    const cell = make("td", { class: "packets" });
    numbers.forEach((number, index) => cell.append(index ? ", " : "", packet(number, connection)));
    if (count > numbers.length) cell.append(", …");
    return cell;
  }

  // Sections.

  function summary() {
    document.title = `${data.capture} – ibwire report`;
    byId("title").textContent = data.capture;
    byId("footer").textContent = `Made by ibwire ${data.version}. Times count from the first packet of the capture, as in Wireshark.`;
    byId("problems").replaceChildren(...data.problems.map((text) => make("p", { class: "problem" }, text)));
    facts(byId("facts"), data.facts);
    byId("totals").replaceChildren(...data.totals.map(([name, count, role]) =>
      make("li", { role, class: count === "0" ? "none" : "" }, make("b", {}, count), make("span", {}, name))));
    byId("remarks").replaceChildren(...data.remarks.map((text) => make("li", {}, text)));
    byId("overview").hidden = !data.rows.length;
  }

  function badge(element, { text, level, meaning }) {
    element.textContent = text;
    element.title = meaning;
    element.className = `badge level-${level}`;
    return element;
  }

  function headline() {
    const section = byId("headline");
    section.hidden = !data.headline;
    if (!data.headline) return;
    const { badge: state, text, about } = data.headline;
    section.className = `headline level-${state.level}`;
    const [mark, verdict, rest] = section.children;
    badge(mark, state);
    verdict.textContent = text || state.meaning;
    rest.textContent = about;
  }

  const sorting = { key: null, down: true };

  function overview() {
    const table = byId("table");
    const columns = data.columns.filter(([key, , kind]) =>
      !["trouble", "share", "time"].includes(kind) || data.rows.some((row) => row[key] || row.marks[key]));
    table.tHead.replaceChildren(make("tr", {}, ...columns.map(([key, name, kind, about]) => {
      const button = make("button", { type: "button", onclick: () => sort(key, kind) }, name);
      const cell = make("th", { title: about, class: ["text", "status"].includes(kind) ? "" : "number" }, button);
      if (sorting.key === key) cell.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
      return cell;
    })));
    table.tBodies[0].replaceChildren(...data.rows.map((row) => {
      const line = make("tr", {}, ...columns.map(([key, , kind]) => cellOf(row[key], kind, row.marks[key])));
      if (data.connections[row.number]) {
        line.className = row.number === shown ? "link picked" : "link";
        line.tabIndex = 0;
        line.dataset.connection = row.number;
        line.addEventListener("click", () => open(row.number));
        line.addEventListener("keydown", (event) => event.key === "Enter" && open(row.number));
      } else line.title = "not among the connections that are plotted";
      return line;
    }));
  }

  function cellOf(value, kind, mark) {
    if (kind === "status") return make("td", {}, badge(make("span"), value));
    if (kind === "text") return make("td", { class: "name" }, value);
    if (value === null) return make("td", { class: "number zero" }, "–");
    if (mark) return make("td", { class: "number bad", title: "cannot be counted in this capture" }, mark);
    const look = kind === "trouble" && value ? "bad" : value ? "" : "zero";
    return make("td", { class: `number ${look}` }, SHOW[kind](value));
  }

  function sort(key, kind) {
    sorting.down = sorting.key === key ? !sorting.down : kind !== "text" && key !== "number";
    sorting.key = key;
    const sign = sorting.down ? -1 : 1;
    const value = (row) => (key === "status" ? row[key].severity : row[key] === null ? -1 : row[key]);
    data.rows.sort((one, other) => sign * (kind === "text"
      ? one[key].localeCompare(other[key], "en", { numeric: true })
      : value(one) - value(other)));
    overview();
  }

  function open(number) {
    select(number);
    byId("connection").scrollIntoView({ block: "start" });
  }

  function select(number) {
    shown = number;
    const { ends, badge: state, verdict, story, events, notes, facts: pairs, filter } = data.connections[number];
    byId("connection").hidden = false;
    byId("picked").hidden = true;
    byId("name").textContent = `Connection ${number}: ${ends.map((end) => end.address).join(" – ")}`;
    byId("ends").replaceChildren(...ends.map((end) => make("div", {},
      make("p", {}, make("b", {}, end.name), ` ${end.address}, queue pair ${end.qpn}`),
      make("p", { class: "hint" }, `sent ${end.sent}; messages: ${end.messages}`))));
    badge(byId("verdict").firstElementChild, state);
    byId("verdict").lastElementChild.textContent = verdict;
    const told = byId("story");
    told.hidden = !story.length;
    told.lastElementChild.className = "story";
    told.lastElementChild.replaceChildren(...story.map(({ style, time, packets, text }) => (time === undefined
      ? make("p", { class: style }, ...linked(text, number))
      : make("p", { class: `${style} event` }, make("span", { class: "time" }, time),
        make("span", { class: "which" }, ...linked(packets, number)), make("span", {}, ...linked(text, number))))));
    eventTable(events, number);
    const about = byId("about");
    facts(about.querySelector("dl"), [...pairs, ["In Wireshark", make("code", {}, filter)]]);
    about.querySelector("ul").replaceChildren(...notes.map((text) => make("li", {}, text)));
    for (const row of document.querySelectorAll("#table tbody tr")) {
      row.classList.toggle("picked", Number(row.dataset.connection) === number);
    }
    draw();
  }

  function linked(text, connection) {
    return text.split(/#(\d+)/).map((part, index) => (index % 2 ? packet(Number(part), connection) : part));
  }

  function eventTable(events, connection) {
    const details = byId("events");
    details.hidden = false;
    details.querySelector("summary").textContent = events.length ? `Events (${grouped(events.length)})` : "Events: none, nothing disturbed this connection";
    const table = details.querySelector("table");
    const hidden = new Set();
    heading(table, events.length ? ["time (s)", "packet", "what", "way", "more"] : []);
    const rows = events.map((event) => {
      const row = make("tr", { class: "link", "data-number": event.number, onclick: () => reveal(event.number, connection) },
        make("td", { class: "number" }, event.time.toFixed(6)),
        make("td", { class: "number" }, packet(event.number, connection)),
        make("td", { class: "kind", role: event.kind }, event.label),
        make("td", { class: "name" }, event.way),
        make("td", { class: "wide" }, event.text));
      row.dataset.kind = event.kind;
      return row;
    });
    table.tBodies[0].replaceChildren(...rows);
    const kinds = new Map();
    for (const { kind, label } of events) {
      const [, count] = kinds.get(kind) || [label, 0];
      kinds.set(kind, [label, count + 1]);
    }
    byId("kinds").replaceChildren(...[...kinds].map(([kind, [label, count]]) => make("button", {
      type: "button", "aria-pressed": "true", role: kind,
      onclick: ({ currentTarget }) => {
        if (!hidden.delete(kind)) hidden.add(kind);
        currentTarget.setAttribute("aria-pressed", String(!hidden.has(kind)));
        for (const row of rows) row.hidden = hidden.has(row.dataset.kind);
      },
    }, `${label} ${grouped(count)}`)));
  }

  function findings() {
    const section = byId("findings");
    const table = section.querySelector("table");
    section.hidden = !data.rows.length && !data.findings.length;
    section.querySelector(".hint").hidden = data.findings.length > 0;
    if (!data.findings.length) return;
    heading(table, ["severity", "rule", "what was found", "times", "where", "packets"]);
    table.tBodies[0].replaceChildren(...data.findings.map((each) => make("tr", {},
      make("td", { class: each.severity }, each.severity),
      make("td", { title: each.law }, make("code", {}, each.rule)),
      make("td", { class: "wide" }, each.text, make("div", { class: "hint" }, `${each.law} [${each.source}]`)),
      make("td", { class: "number" }, each.count ? grouped(each.count) : "–"),
      make("td", {}, each.connection ? `connection ${each.connection}: ` : "", each.where),
      packets(each.numbers, each.count, each.connection))));
  }

  function pauses() {
    const section = byId("pauses");
    section.hidden = !data.pauses.rows.length;
    section.querySelector(".hint").textContent = data.pauses.remark;
    const table = section.querySelector("table");
    heading(table, ["sent by", "what is held", "frames", "pauses", "paused in all", "longest", "storms", "longest begins in packet"]);
    table.tBodies[0].replaceChildren(...data.pauses.rows.map((each) => make("tr", {},
      make("td", {}, each.sender), make("td", {}, each.what),
      ...[grouped(each.frames), grouped(each.pauses), time(each.paused), time(each.longest), grouped(each.storms), each.number ? `${each.number}` : "–"]
        .map((text) => make("td", {}, text)))));
  }

  function comments() {
    const section = byId("comments");
    section.hidden = !data.comments.length;
    const table = section.querySelector("table");
    heading(table, ["packet", "comment"]);
    table.tBodies[0].replaceChildren(...data.comments.map(([number, text]) =>
      make("tr", {}, make("td", {}, `${number}`), make("td", { class: "wide" }, text))));
  }

  headline();
  summary();
  overview();
  findings();
  pauses();
  comments();
  follow(draw, (width) => { plot.style.width = width; });
  const first = data.rows.find((row) => data.connections[row.number]);
  if (first) select(first.number);
  load(draw);
})();
