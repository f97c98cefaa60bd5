"use strict";
// One page of a gkestimator report. The document lies in <script id="data">; the view of its kind draws it.
// Text of strangers' files (names) reaches the page through textContent and canvases alone, never as HTML.
const doc = JSON.parse(document.getElementById("data").textContent);
const main = document.querySelector("main");
const charts = [];
const views = {};

function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") node.className = value;
    else if (key in node && key !== "list") node[key] = value;
    else node.setAttribute(key, value);
  }
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = () => document.documentElement.dataset.theme === "dark";
// Okabe and Ito's hues, which the colour-blind tell apart, moved until each stands out from white and from black.
const HUES = [
  ["#0072b2", "#4aa8e0"], ["#d55e00", "#f08a3c"], ["#00916a", "#2cc79b"], ["#b04a86", "#e39ac6"],
  ["#b87d00", "#f0bc42"], ["#2f8fc9", "#9ad4f7"], ["#5b6770", "#b8bec4"],
];
const SYMBOLS = ["circle", "rect", "triangle", "diamond", "roundRect", "arrow", "pin"];
const hue = number => HUES[number % HUES.length][dark() ? 1 : 0];
// A line is told apart by hue and symbol, from the eighth on by its dashes too.
const lineLook = number => ({
  color: hue(number), itemStyle: { color: hue(number) }, symbol: SYMBOLS[number % SYMBOLS.length], symbolSize: 7,
  lineStyle: { color: hue(number), width: 2, type: ["solid", "dashed", "dotted"][Math.floor(number / HUES.length) % 3] },
});

const UNKNOWN = "–";
const sum = list => list.reduce((a, b) => a + b, 0);
const known = value => value !== null && value !== undefined && isFinite(value);
function number(value, digits = 3) {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0";
  const rounded = Number(value.toPrecision(digits)), magnitude = Math.floor(Math.log10(Math.abs(rounded)));
  if (magnitude >= 9 || magnitude < -4) return value.toExponential(digits - 1);
  const decimals = Math.max(0, digits - 1 - magnitude);
  return rounded.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}
const count = value => known(value) ? value.toLocaleString("en-US") : UNKNOWN;
// What people wrote themselves is not rounded to what an estimate is worth.
const exact = value => known(value) ? Number(value.toPrecision(6)).toLocaleString("en-US") : UNKNOWN;
const rate = value => number(value, 4);
const ms = value => known(value) ? number(value) + " ms" : UNKNOWN;
const time = us => us >= 1000 ? number(us / 1000) + " ms" : number(us) + " µs";
const percent = value => known(value) ? (value && Math.abs(value) < 9.95 ? value.toFixed(1) : Math.round(value).toLocaleString("en-US")) + " %" : UNKNOWN;
// 99.97 % of requests on time is not all of them.
const onTime = value => known(value) ? (value < 100 ? (Math.floor(value * 10) / 10).toFixed(1) : "100") + " %" : UNKNOWN;
const signed = value => !known(value) ? UNKNOWN : Math.abs(value) < 0.005 ? "0 %" : (value > 0 ? "+" : "") + (Math.abs(value) < 0.95 ? value.toFixed(2) : value.toFixed(1)) + " %";
function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= (at ? 1023.5 : 1024) && at < 4) { value /= 1024; at++; }
  return (at ? number(value) : count(value)) + " " + units[at];
}

// A picture with its caption. settings: tall, height (pixels), lanes (rows of bars, which set the height).
function chart(parent, option, label, caption, settings = {}) {
  const box = make("div", { class: settings.tall ? "chart tall" : "chart", role: "img", "aria-label": label });
  parent.append(make("figure", {}, box, caption ? make("figcaption", { textContent: caption }) : null));
  const drawn = { box, option, instance: null, lanes: settings.lanes };
  charts.push(drawn);
  box.drawn = drawn;
  draw(drawn);
  widths.observe(box);
  if (settings.zoom) zoomByKeys(drawn);
}
// A picture beside a second one, or in a window of another size, is drawn anew: its legend may take more lines.
const widths = new ResizeObserver(entries => {
  for (const { target } of entries) if (target.isConnected && target.clientWidth !== target.drawn.width) draw(target.drawn);
});
// Lines that a legend takes where its entries are set one after another.
function legendLines(option, width) {
  const names = option.legend.data || distinct(option.series.map(s => s.name));
  let lines = 1, used = 0;
  for (const name of names) {
    const wanted = 7 * (name.name || name).length + 46;
    if (used && used + wanted > width) { lines++; used = 0; }
    used += wanted;
  }
  return lines;
}
const MOST_LEGEND_LINES = 6;
function draw(drawn) {
  if (drawn.instance) drawn.instance.dispose();
  const option = drawn.option();
  let lines = option.legend ? legendLines(option, drawn.box.clientWidth) : 1;
  const scrolls = lines > MOST_LEGEND_LINES;
  if (scrolls) lines = 1;
  drawn.width = drawn.box.clientWidth;
  drawn.box.style.height = "";
  const height = drawn.lanes ? 110 + 26 * drawn.lanes : drawn.box.clientHeight;
  drawn.box.style.height = `${height + 20 * (lines - 1)}px`;
  drawn.instance = echarts.init(drawn.box, null, { renderer: "canvas" });
  const ink = style("--ink"), soft = style("--soft"), line = style("--line");
  const axis = { axisLine: { lineStyle: { color: soft } }, axisLabel: { color: soft, hideOverlap: true }, nameTextStyle: { color: soft }, splitLine: { lineStyle: { color: line } } };
  for (const key of ["xAxis", "yAxis"]) {
    if (option[key]) option[key] = [].concat(option[key]).map(a => ({ ...axis, ...a, axisLabel: { ...axis.axisLabel, ...a.axisLabel } }));
  }
  for (const zoom of option.dataZoom || []) if (zoom.type === "slider") zoom.textStyle = { color: soft };
  drawn.instance.setOption({
    backgroundColor: "transparent", textStyle: { color: ink, fontFamily: "system-ui, sans-serif" }, animation: false,
    tooltip: { confine: true, backgroundColor: style("--card"), borderColor: line, textStyle: { color: ink }, renderMode: "richText", ...option.tooltip },
    ...option,
    legend: option.legend === undefined ? undefined : { textStyle: { color: ink }, pageTextStyle: { color: ink }, pageIconColor: soft, pageIconInactiveColor: line, type: scrolls ? "scroll" : "plain", top: 0, left: "center", itemGap: 8, ...option.legend },
    title: option.title === undefined ? undefined : { text: option.title, left: 0, textStyle: { fontSize: 14, color: ink } },
    grid: { left: 60, right: 24, bottom: 50, ...option.grid, top: ((option.grid || {}).top || 44) + 20 * (lines - 1) },
  });
}
function zoomByKeys(drawn) {
  drawn.box.tabIndex = 0;
  drawn.box.addEventListener("keydown", event => {
    const zoom = drawn.instance.getOption().dataZoom[0];
    const span = zoom.end - zoom.start, middle = (zoom.start + zoom.end) / 2;
    const ends = {
      "+": [middle - span / 4, middle + span / 4], "-": [middle - span, middle + span], Home: [0, 100],
      ArrowLeft: [zoom.start - span / 4, zoom.end - span / 4], ArrowRight: [zoom.start + span / 4, zoom.end + span / 4],
    }[event.key];
    if (!ends) return;
    event.preventDefault();
    const width = Math.min(100, ends[1] - ends[0]);
    const start = Math.max(0, Math.min(100 - width, ends[0]));
    drawn.instance.dispatchAction({ type: "dataZoom", start, end: start + width });
  });
}
const ZOOM = "Zoom: drag the bar below the picture; or choose the picture with Tab, then + and − zoom, arrows move, Home shows all.";
const below = name => ({ type: "value", name, nameLocation: "middle", nameGap: 30 });
// Names beside bars, cut where they are long: the tooltip has them in full.
const named = (data, width = 130) => ({ type: "category", inverse: true, data, axisTick: { show: false }, axisLabel: { width, overflow: "truncate", interval: 0, hideOverlap: false, formatter: text => text.includes("/") && text.length > width / 7.5 ? "…" + text.slice(-Math.floor(width / 7.5 - 1)) : text } });
const narrow = () => main.clientWidth < 500;

function clear(node) {
  for (let i = charts.length - 1; i >= 0; i--) {
    if (node.contains(charts[i].box)) { widths.unobserve(charts[i].box); charts[i].instance.dispose(); charts.splice(i, 1); }
  }
  node.replaceChildren();
  return node;
}
function section(parent, title, words) {
  const part = make("section", {}, make("h2", { textContent: title }), words ? make("p", { class: "soft", textContent: words }) : null);
  parent.append(part);
  return part;
}
// columns: [heading, cell of a record, is a number]
function table(parent, label, columns, records) {
  const head = make("tr", {}, ...columns.map(([title, , n]) => make("th", { textContent: title, class: n ? "n" : "", scope: "col" })));
  const body = records.map(record => make("tr", {}, ...columns.map(([, cell, n]) => {
    const value = cell(record);
    const td = make("td", { class: n ? "n" : "" });
    td.append(value instanceof Node ? value : String(value));
    return td;
  })));
  parent.append(make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": label }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body))));
}
function choice(parent, label, values, texts, chosen, change) {
  if (values.length < 2) return;
  const select = make("select", {}, ...values.map((v, i) => make("option", { value: String(i), textContent: texts[i], selected: v === chosen })));
  select.addEventListener("change", () => change(values[Number(select.value)]));
  parent.append(make("label", {}, label + " ", select));
}
function cardsOf(parent, figures) {
  const cards = make("div", { class: "cards" });
  for (const [title, big, small, kind] of figures) {
    cards.append(make("div", { class: "card", style: "cursor:default" }, make("b", { textContent: title }), make("span", { class: "big " + (kind || ""), textContent: big }), make("div", { class: "soft", textContent: small || "" })));
  }
  parent.append(cards);
}
const whole = text => make("span", { class: "whole", textContent: text });
const distinct = list => [...new Set(list)];
