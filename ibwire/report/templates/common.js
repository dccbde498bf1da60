"use strict";
// What the page of a capture and that of a run have in common.
const shared = (() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);

  // Elements. Texts of a capture or of a run are only ever set as text.

  function make(tag, options = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(options)) {
      if (name === "role") element.style.setProperty("--role", `var(--${value})`);
      else if (name === "onclick") element.addEventListener("click", value);
      else if (name === "class") element.className = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  const grouped = (value) => value.toLocaleString("en");

  function wrapped(text, width) {
    const lines = [""];
    for (const word of text.split(" ")) {
      const last = lines[lines.length - 1];
      if (last && last.length + word.length >= width) lines.push(word);
      else lines[lines.length - 1] = last ? `${last} ${word}` : word;
    }
    return lines.join("<br>");
  }

  // Colours: the style sheet has one for each role and theme.

  const probe = make("span", { hidden: "" });
  document.body.append(probe);

  function colour(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }

  // Rows of the legend of these names in a width in pixels; 0 without names.
  function legendRows(names, width) {
    let rows = names.length ? 1 : 0, used = 0;
    for (const name of names) {
      const wide = 60 + 7.5 * name.length;
      if (used && used + wide > width) [rows, used] = [rows + 1, 0];
      used += wide;
    }
    return rows;
  }

  function themedAxes(layout) {
    return Object.fromEntries(Object.entries(layout)
      .filter(([name]) => /^[xy]axis/.test(name))
      .map(([name, axis]) => [name, { ...axis, gridcolor: colour("grid"), linecolor: colour("line") }]));
  }

  // Plotly would take the room for the legend from the panels; below: pixels for it. wide: signs
  // of a line of a title on a narrow screen.
  function themed(layout, axes, { narrow, left, below, wide }) {
    const text = colour("text"), card = colour("card");
    return {
      ...layout, ...axes,
      paper_bgcolor: card, plot_bgcolor: card,
      font: { color: text, size: narrow ? 11 : 12, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: colour("hover"), bordercolor: colour("line"), font: { color: text } },
      modebar: { color: colour("muted"), activecolor: colour("accent"), bgcolor: "rgba(0,0,0,0)" },
      annotations: layout.annotations.map((each) => ({
        ...each, text: wrapped(each.text, narrow ? wide : 200), align: "left",
        font: { size: narrow ? 11 : 13, color: text },
      })),
      height: layout.height + below,
      margin: { ...layout.margin, l: left, b: layout.margin.b + below },
      legend: { orientation: "h", y: 0, yref: "container", yanchor: "bottom", x: 0, font: { size: 12 } },
    };
  }

  const CONFIG = {
    responsive: true, displaylogo: false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };

  // The library is compressed; the page is complete without it, but for the plots.
  async function load(draw) {
    const packed = Uint8Array.from(atob(byId("plotly").textContent), (each) => each.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = make("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    draw();
  }

  // Theme: that of the system until the button is used; print is always light. paper: sets the
  // width of the plots, as plotly does not follow that of paper; "" for that of the window.
  function follow(draw, paper) {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
    const label = () => { byId("theme").textContent = isDark() ? "Light" : "Dark"; };
    function retheme() {
      label();
      draw();
    }
    byId("theme").addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      retheme();
    });
    system.addEventListener("change", retheme);
    let before = null;
    addEventListener("beforeprint", () => {
      before = root.dataset.theme || "";
      root.dataset.theme = "light";
      paper("680px");
      draw();
    });
    addEventListener("afterprint", () => {
      if (before) root.dataset.theme = before;
      else delete root.dataset.theme;
      paper("");
      draw();
    });
    label();
  }

  const data = JSON.parse(byId("data").textContent);
  return { data, byId, make, grouped, colour, legendRows, themedAxes, themed, CONFIG, load, follow };
})();
