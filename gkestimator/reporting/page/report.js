"use strict";
// One page of a gkestimator report. The document lies in <script id="data">; every view below draws one kind of it.
// Text of strangers' files (names) reaches the page through textContent alone, never as HTML.
const doc = JSON.parse(document.getElementById("data").textContent);
const main = document.querySelector("main");
const charts = [];

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
const PALETTE = ["#2a6f97", "#e08e2b", "#3c8d5a", "#b5495b", "#7a63a8", "#6f7d86", "#1f9aa6", "#a8722a", "#c46bad", "#8a9a2b", "#4f6bd0", "#d0674f"];
const UNKNOWN = "–";

function number(value, digits = 3) {
  if (value === null || value === undefined || !isFinite(value)) return UNKNOWN;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6) return value.toExponential(2);
  if (size >= 100) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}
const ms = value => value === null || value === undefined ? UNKNOWN : number(value) + " ms";
function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < 4) { value /= 1024; at++; }
  return number(value) + " " + units[at];
}
const time = us => us >= 1000 ? number(us / 1000) + " ms" : number(us) + " µs";

function chart(parent, option, label, tall = false) {
  const box = make("div", { class: tall ? "chart tall" : "chart", role: "img", "aria-label": label });
  parent.append(box);
  const drawn = { box, option, instance: null };
  charts.push(drawn);
  draw(drawn);
}
function draw(drawn) {
  if (drawn.instance) drawn.instance.dispose();
  drawn.instance = echarts.init(drawn.box, null, { renderer: "canvas" });
  const ink = style("--ink"), soft = style("--soft"), line = style("--line");
  const option = drawn.option();
  const axis = { axisLine: { lineStyle: { color: soft } }, axisLabel: { color: soft, hideOverlap: true }, nameTextStyle: { color: soft }, splitLine: { lineStyle: { color: line } } };
  for (const key of ["xAxis", "yAxis"]) {
    if (option[key]) option[key] = [].concat(option[key]).map(a => ({ ...axis, ...a, axisLabel: { ...axis.axisLabel, ...a.axisLabel } }));
  }
  drawn.instance.setOption({
    color: PALETTE, backgroundColor: "transparent", textStyle: { color: ink, fontFamily: "inherit" }, animation: false,
    legend: option.legend === undefined ? undefined : { textStyle: { color: ink }, type: "scroll", top: 0, ...option.legend },
    tooltip: { confine: true, backgroundColor: style("--card"), borderColor: line, textStyle: { color: ink }, renderMode: "richText", ...option.tooltip },
    grid: { left: 56, right: 20, top: 40, bottom: 48, ...option.grid },
    ...Object.fromEntries(Object.entries(option).filter(([k]) => !["legend", "tooltip", "grid"].includes(k))),
  });
}
function clear(node) {
  for (let i = charts.length - 1; i >= 0; i--) {
    if (node.contains(charts[i].box)) { charts[i].instance.dispose(); charts.splice(i, 1); }
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
function table(parent, columns, records) {
  const head = make("tr", {}, ...columns.map(([title, , n]) => make("th", { textContent: title, class: n ? "n" : "", scope: "col" })));
  const body = records.map(record => make("tr", {}, ...columns.map(([, cell, n]) => {
    const value = cell(record);
    const td = make("td", { class: n ? "n" : "" });
    td.append(value instanceof Node ? value : String(value));
    return td;
  })));
  parent.append(make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "table" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body))));
}
function choice(parent, label, values, texts, chosen, change) {
  if (values.length < 2) return;
  const select = make("select", {}, ...values.map((v, i) => make("option", { value: String(i), textContent: texts[i], selected: v === chosen })));
  select.addEventListener("change", () => change(values[Number(select.value)]));
  parent.append(make("label", {}, label + " ", select));
}

// ---------------------------------------------------------------- models on GPUs
const views = {};
views.models = function () {
  const rows = doc.rows;
  const distinct = key => [...new Set(rows.map(r => r[key]))];
  const state = { model: rows[0].model, gpu: rows[0].gpu, batch: rows[0].batch_size };
  const verdicts = section(main, "Verdict", "One card a GPU. The range is the 90 % interval: nine of ten such estimates lie inside. Choose a card to see the GPU below.");
  const cards = make("div", { class: "cards" });
  const controls = make("div", { class: "controls" });
  verdicts.before(controls);
  verdicts.append(cards);
  const rest = make("div");
  main.append(rest);

  const same = r => r.model === state.model && r.batch_size === state.batch;
  function show() {
    controls.replaceChildren();
    choice(controls, "Model", distinct("model"), distinct("model"), state.model, v => { state.model = v; settle(); });
    const batches = [...new Set(rows.filter(r => r.model === state.model).map(r => r.batch_size))];
    choice(controls, "Batch", batches, batches.map(b => b === null ? "none" : String(b)), state.batch, v => { state.batch = v; settle(); });
    choice(controls, "GPU", distinct("gpu"), distinct("gpu"), state.gpu, v => { state.gpu = v; settle(); });
    cards.replaceChildren(...rows.filter(same).map(card));
    const row = rows.find(r => same(r) && r.gpu === state.gpu) || rows.find(same);
    clear(rest);
    if (row) details(rest, row);
  }
  function settle() {
    if (!rows.some(same)) state.batch = rows.find(r => r.model === state.model).batch_size;
    if (!rows.some(r => same(r) && r.gpu === state.gpu)) state.gpu = rows.find(same).gpu;
    show();
  }
  function card(row) {
    const known = row.mreq_pct !== null;
    const fits = known && row.mreq_pct <= 100;
    const verdict = !known ? ["warn", "memory unknown"] : fits ? ["good", "fits"] : ["bad", "does not fit"];
    const button = make("button", { class: "card", type: "button", "aria-pressed": String(row.gpu === state.gpu) },
      make("b", { textContent: row.gpu }),
      make("span", { class: "big", textContent: ms(row.latency_ms) }),
      make("div", { class: "soft", textContent: row.latency_high_ms === null ? "no upper end known" : `${number(row.latency_low_ms)} to ${ms(row.latency_high_ms)}` }),
      make("div", { textContent: row.throughput_rps === null ? "" : `${number(row.throughput_rps)} samples a second` }),
      make("div", {}, make("span", { class: verdict[0], textContent: verdict[1] }), ` · ${bytes(row.mreq_bytes)} (${number(row.mreq_pct)} %)`),
      make("div", { class: "soft", textContent: row.host_bound === null ? "" : row.host_bound ? "the host sets the time" : "the GPU sets the time" }),
      make("div", { class: "soft", textContent: row.usd_per_million === null ? "" : `$ ${number(row.usd_per_million)} a million samples` }));
    button.addEventListener("click", () => { state.gpu = row.gpu; show(); });
    return button;
  }
  function details(parent, row) {
    const name = `${row.model} on ${row.gpu}${row.batch_size === null ? "" : `, batch ${row.batch_size}`}`;
    if (row.warnings) parent.append(make("p", { class: "warn", textContent: "Know before use: " + row.warnings }));
    const detail = doc.details[row.id];
    const launches = detail && unpack(detail, doc.kernels[detail.kernels]);
    if (detail) {
      whereTimeGoes(parent, row, launches, name);
      timeline(parent, launches, detail, name);
      roofline(parent, row, launches, name);
    } else parent.append(make("p", { class: "note", textContent: "The kernels of this row were left out to keep the page small: estimate fewer combinations to see them." }));
    batches(parent, row);
    if (detail) {
      memory(parent, row, detail, name);
      modules(parent, launches);
    }
    everything(parent);
  }
  function unpack(detail, kernels) {
    return detail.kernel.map((k, i) => ({
      ...Object.fromEntries(Object.keys(kernels).map(key => [key, kernels[key][k]])),
      us: detail.us[k], low: detail.low[k], high: detail.high[k], trust: detail.trust[k], bound: detail.bound[i], peak: detail.roof[k],
      start: detail.start[i], repeat: detail.repeat[i], step: detail.step[i], operator: detail.operators[detail.step[i]], module: detail.modules[detail.step[i]] || "", type: detail.types[detail.step[i]],
    }));
  }
  const sum = list => list.reduce((a, b) => a + b, 0);
  const grouped = (launches, key) => {
    const groups = new Map();
    for (const launch of launches) {
      const of = key(launch);
      const known = groups.get(of) || { name: of, us: 0, count: 0, flops: 0, bytes: 0 };
      known.us += launch.us * launch.repeat; known.count += launch.repeat;
      known.flops += launch.flops * launch.repeat; known.bytes += launch.bytes * launch.repeat;
      groups.set(of, known);
    }
    return [...groups.values()].sort((a, b) => b.us - a.us);
  };
  const BOUND = { compute: "arithmetic", memory: "memory", latency: "too small to fill the GPU", host: "waiting for the host" };

  function whereTimeGoes(parent, row, launches, name) {
    const busy = sum(launches.map(l => l.us * l.repeat));
    const part = section(parent, "Where the time goes",
      `The GPU works ${time(busy)} of ${ms(row.latency_ms)}; issuing ${number(row.kernels)} kernels takes the host ${ms(row.host_ms)}.` +
      (row.copy_ms ? ` Copying inputs and outputs would take ${ms(row.copy_ms)} more.` : ""));
    const pair = make("div", { class: "pair" });
    part.append(pair);
    const types = grouped(launches, l => l.type).slice(0, 12).reverse();
    chart(pair, () => ({
      title: { text: "By operator", textStyle: { fontSize: 13, color: style("--ink") } }, grid: { left: 150, top: 30 },
      xAxis: { type: "value", name: "ms", nameLocation: "middle", nameGap: 28 }, yAxis: { type: "category", data: types.map(t => t.name), axisLabel: { width: 140, overflow: "truncate" } },
      tooltip: { valueFormatter: v => ms(v) }, series: [{ type: "bar", data: types.map(t => t.us / 1000), itemStyle: { color: PALETTE[0] } }],
    }), `Time by operator of ${name}`);
    const bounds = grouped(launches, l => BOUND[l.bound] || l.bound);
    chart(pair, () => ({
      title: { text: "By what holds it up", textStyle: { fontSize: 13, color: style("--ink") } }, legend: { bottom: 0, top: undefined },
      tooltip: { valueFormatter: v => ms(v) },
      series: [{ type: "pie", radius: ["40%", "65%"], label: { color: style("--ink"), formatter: p => Math.round(p.percent) + " %" }, data: bounds.map(b => ({ name: b.name, value: b.us / 1000 })) }],
    }), `Time by bound of ${name}`);
    const top = grouped(launches, l => `${l.name}\u0000${l.shape}`).slice(0, 20);
    part.append(make("p", { class: "soft", textContent: "The twenty kernels that take most of it, equal ones together:" }));
    table(part, [
      ["kernel", t => t.name.split("\u0000")[0], false], ["shape", t => make("code", { textContent: t.name.split("\u0000")[1] || UNKNOWN }), false],
      ["times", t => number(t.count), true], ["each", t => time(t.us / t.count), true], ["all", t => time(t.us), true],
      ["share", t => number(100 * t.us / busy) + " %", true],
    ], top);
  }

  function timeline(parent, launches, detail, name) {
    const part = section(parent, "Timeline", "The host issues calls one after another (upper lane), the GPU runs them (lower lane). Where the lower lane has gaps, it waits. Drag the bar below to zoom.");
    const families = [...new Set(launches.map(l => l.family))];
    const items = [];
    let done = 0;
    detail.calls.forEach((calls, i) => {
      const us = calls * detail.host_us;
      if (us > 0) items.push({ value: [0, done, done + us, detail.operators[i]], itemStyle: { color: "#8a949c" } });
      done += us;
    });
    for (const l of launches) items.push({ value: [1, l.start, l.start + l.us * l.repeat, `${l.operator} · ${l.name} · ${time(l.us)}`], itemStyle: { color: PALETTE[families.indexOf(l.family) % PALETTE.length] } });
    chart(part, () => ({
      grid: { left: 50, top: 36, bottom: 80 }, dataZoom: [{ type: "slider", filterMode: "weakFilter", bottom: 10 }, { type: "inside", filterMode: "weakFilter", zoomOnMouseWheel: "ctrl" }],
      xAxis: { type: "value", name: "µs", min: 0, max: Math.ceil(Math.max(done, ...launches.map(l => l.start + l.us * l.repeat))) }, yAxis: { type: "category", data: ["host", "GPU"], inverse: true },
      tooltip: { formatter: p => `${p.value[3]}\nfrom ${time(p.value[1])}, ${time(p.value[2] - p.value[1])}` },
      series: [{ type: "custom", clip: true, encode: { x: [1, 2], y: 0 }, data: items, renderItem: (params, api) => {
        const from = api.coord([api.value(1), api.value(0)]), to = api.coord([api.value(2), api.value(0)]), height = api.size([0, 1])[1] * 0.6;
        return { type: "rect", shape: echarts.graphic.clipRectByRect({ x: from[0], y: from[1] - height / 2, width: Math.max(to[0] - from[0], 0.5), height }, params.coordSys), style: api.style() };
      } }],
    }), `Timeline of ${name}`);
    part.append(make("p", { class: "note" }, "Colours: ", ...families.map((f, i) => make("span", {}, make("span", { class: "bar", style: `width:.8em;background:${PALETTE[i % PALETTE.length]}` }), ` ${f}  `))));
  }

  const TRUST = ["inside the trained range", "learned, but outside the range or on another GPU", "calculated, not learned"];
  function roofline(parent, row, launches, name) {
    const part = section(parent, "Roofline", "A dot is a kernel: how much it calculates for every byte it moves, and how fast. Under the slope memory holds it up, under the roof arithmetic. The colour says how far to trust the dot.");
    const roofs = row.roofs;
    const seen = new Set();
    const series = TRUST.map((text, trust) => ({
      name: text, type: "scatter", itemStyle: { color: [PALETTE[2], PALETTE[1], PALETTE[3]][trust], opacity: .75 },
      data: launches.filter(l => l.trust === trust && l.flops > 0 && l.bytes > 0 && l.us > 0 && !seen.has(l.id) && seen.add(l.id))
        .map(l => ({ value: [l.flops / l.bytes, l.flops / l.us / 1e6, `${l.name} ${l.shape}: ${time(l.us)}`], symbolSize: 4 + 14 * Math.sqrt(l.us / Math.max(...launches.map(k => k.us))) })),
    })).filter(s => s.data.length);
    const right = Math.max(...series.flatMap(s => s.data.map(d => d.value[0])), 100) * 2, left = Math.min(...series.flatMap(s => s.data.map(d => d.value[0])), 1) / 2;
    for (const roof of roofs) {
      const ridge = roof.flops_per_s / row.dram_bytes_per_s;
      series.push({ name: `${roof.name} peak`, type: "line", symbol: "none", lineStyle: { width: 1.5, type: roofs.indexOf(roof) ? "dashed" : "solid", color: style("--soft") }, itemStyle: { color: style("--soft") }, tooltip: { show: false },
        data: [[left, left * row.dram_bytes_per_s / 1e12], [ridge, roof.flops_per_s / 1e12], [Math.max(right, ridge * 2), roof.flops_per_s / 1e12]] });
    }
    chart(part, () => ({
      legend: {}, grid: { top: 60, left: 64 }, xAxis: { type: "log", name: "FLOP per byte", nameLocation: "middle", nameGap: 28 }, yAxis: { type: "log", name: "TFLOP/s" },
      tooltip: { formatter: p => p.value[2] || "" }, series,
    }), `Roofline of ${name}`, true);
  }

  function batches(parent, row) {
    const mine = rows.filter(r => r.model === row.model && r.batch_size !== null);
    const sizes = [...new Set(mine.map(r => r.batch_size))].sort((a, b) => a - b);
    if (sizes.length < 2) return;
    const part = section(parent, "Batch sizes, GPUs side by side", "Lines are estimates; the bands, drawn for the GPU chosen above, their 90 % intervals.");
    const pair = make("div", { class: "pair" });
    part.append(pair);
    const gpus = [...new Set(mine.map(r => r.gpu))];
    const at = (gpu, size) => mine.find(r => r.gpu === gpu && r.batch_size === size);
    const lines = value => gpus.map((gpu, i) => ({ name: gpu, type: "line", symbolSize: 5, color: PALETTE[i % PALETTE.length], data: sizes.map(s => [s, at(gpu, s) ? value(at(gpu, s)) : null]) }));
    const band = (low, high) => {
      const data = sizes.map(s => at(row.gpu, s)).filter(r => r && r.latency_high_ms !== null);
      const color = PALETTE[gpus.indexOf(row.gpu) % PALETTE.length];
      return [{ name: "low", type: "line", stack: "band", lineStyle: { opacity: 0 }, symbol: "none", tooltip: { show: false }, data: data.map(r => [r.batch_size, low(r)]) },
        { name: "high", type: "line", stack: "band", lineStyle: { opacity: 0 }, symbol: "none", tooltip: { show: false }, areaStyle: { color, opacity: .18 }, data: data.map(r => [r.batch_size, high(r) - low(r)]) }];
    };
    const axis = { type: "log", name: "batch", nameLocation: "middle", nameGap: 28, min: sizes[0], max: sizes[sizes.length - 1], logBase: 2 };
    chart(pair, () => ({ legend: { data: gpus }, xAxis: axis, yAxis: { type: "value", name: "latency, ms" }, tooltip: { trigger: "item", formatter: p => `${p.seriesName}\nbatch ${p.value[0]}: ${ms(p.value[1])}` }, series: [...lines(r => r.latency_ms), ...band(r => r.latency_low_ms, r => r.latency_high_ms)] }), "Latency by batch size");
    const rate = ms => r => r.batch_size / r[ms] * 1000;
    chart(pair, () => ({ legend: { data: gpus }, xAxis: axis, yAxis: { type: "value", name: "samples a second" }, tooltip: { trigger: "item", formatter: p => `${p.seriesName}\nbatch ${p.value[0]}: ${number(p.value[1])} a second` }, series: [...lines(r => r.throughput_rps), ...band(rate("latency_high_ms"), rate("latency_low_ms"))] }), "Throughput by batch size");
  }

  function memory(parent, row, detail, name) {
    const part = section(parent, "Memory", `${bytes(row.mreq_bytes)} in all: weights ${bytes(row.weights_bytes)}, activations at their peak ${bytes(row.activations_bytes)}, libraries' scratch ${bytes(row.workspace_bytes)}, the allocator's rounding ${bytes(row.allocator_bytes)}, the CUDA context ${bytes(row.context_bytes)}.`);
    chart(part, () => ({
      grid: { left: 70 }, xAxis: { type: "category", data: detail.operators, axisLabel: { show: false }, name: "operators in order", nameLocation: "middle", nameGap: 14 }, yAxis: { type: "value", name: "MiB" },
      dataZoom: [{ type: "slider", bottom: 4, height: 18 }], tooltip: { trigger: "axis", formatter: p => `${p[0].name}\n${number(p[0].value)} MiB of activations` },
      series: [{ type: "line", step: "end", symbol: "none", areaStyle: { opacity: .25 }, data: detail.live.map(b => b / 2 ** 20),
        markPoint: { data: [{ type: "max", name: "peak" }], symbolSize: 34, label: { formatter: "peak", fontSize: 10 } } }],
    }), `Activations over the operators of ${name}`);
    part.append(make("p", { class: "soft", textContent: `Alive at the peak (${detail.peak.step}):` }));
    table(part, [["tensor", p => make("code", { textContent: p[0] }), false], ["bytes", p => bytes(p[1]), true]], detail.peak.alive);
  }

  function modules(parent, launches) {
    const part = section(parent, "Layers", "The graph by the names that its exporter gave: time on the GPU, weights read, data written. Open a layer to see what is inside.");
    const root = { name: "", us: 0, weights: 0, written: 0, children: new Map() };
    const add = (node, l) => { node.us += l.us * l.repeat; node.weights += l.weights; node.written += l.written; };
    for (const l of launches) {
      let node = root;
      add(root, l);
      for (const word of `${l.module}/${l.operator}`.split("/").filter(w => w)) {
        if (!node.children.has(word)) node.children.set(word, { name: word, us: 0, weights: 0, written: 0, children: new Map() });
        node = node.children.get(word);
        add(node, l);
      }
    }
    const figures = node => make("span", { class: "n" }, make("span", { class: "bar", style: `width:${Math.max(1, 60 * node.us / root.us)}px` }), ` ${time(node.us)} · ${bytes(node.weights)} read · ${bytes(node.written)} written`);
    // Children are made when their layer is opened: a decoder has tens of thousands.
    const line = node => {
      while (node.children.size === 1 && [...node.children.values()][0].children.size) {
        const only = [...node.children.values()][0];
        node = { ...only, name: `${node.name}/${only.name}` };
      }
      const name = make("span", { class: "name", textContent: node.name });
      if (!node.children.size) return make("div", { class: "leaf" }, name, figures(node));
      const box = make("details", {}, make("summary", {}, name, figures(node)));
      box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(...[...node.children.values()].map(line)); }, { once: true });
      return box;
    };
    part.append(...[...root.children.values()].map(line));
  }

  function everything(parent) {
    const part = section(parent, "All rows");
    table(part, [
      ["model", r => r.model, false], ["GPU", r => r.gpu, false], ["runtime", r => r.runtime, false], ["dtype", r => r.dtype, false], ["batch", r => r.batch_size === null ? UNKNOWN : r.batch_size, true],
      ["latency", r => ms(r.latency_ms), true], ["interval", r => r.latency_high_ms === null ? UNKNOWN : `${number(r.latency_low_ms)} to ${number(r.latency_high_ms)}`, true],
      ["memory", r => bytes(r.mreq_bytes), true], ["of GPU", r => number(r.mreq_pct) + " %", true], ["in trained range", r => number(r.coverage_pct) + " %", true], ["times from", r => r.source, false],
    ], rows);
  }
  show();
};

// ---------------------------------------------------------------- a plan
function cardsOf(parent, figures) {
  const cards = make("div", { class: "cards" });
  for (const [title, big, small, kind] of figures) {
    cards.append(make("div", { class: "card", style: "cursor:default" }, make("b", { textContent: title }), make("span", { class: "big " + (kind || ""), textContent: big }), make("div", { class: "soft", textContent: small || "" })));
  }
  parent.append(cards);
}
const rate = value => value === null || value === undefined ? UNKNOWN : number(value, 4);
const percent = value => value === null || value === undefined ? UNKNOWN : number(value) + " %";

views.plan = function () {
  const plan = doc.plan, totals = plan.totals;
  const asked = plan.workload.models.reduce((sum, m) => sum + m.rate_rps, 0);
  const replicas = plan.gpus.flatMap(gpu => gpu.replicas.map(replica => ({ ...replica, gpu: gpu.id, type: gpu.type })));
  const verdict = section(main, "Verdict");
  cardsOf(verdict, [
    ["Requests on time, promised", `${rate(totals.goodput_rps)} a second`, `of ${rate(asked)} asked`, totals.goodput_rps >= asked * 0.999 ? "good" : "bad"],
    ["Expected, with waiting and neighbours", `${rate(totals.expected_goodput_rps)} a second`, "by queueing theory"],
    ["GPUs used", String(totals.gpus_used), `of ${plan.gpus.length} listed`],
    ["Cost", totals.cost_per_hour === null ? UNKNOWN : `$ ${number(totals.cost_per_hour)} an hour`, "at the prices of the cluster file or the GPU files"],
  ]);
  const gpus = section(main, "GPUs", "A bar is a GPU; the parts of the upper chart are its models' shares of its SMs over time, of the lower one their memory. What is left to 100 % is free.");
  const names = [...new Set(replicas.map(r => r.model))];
  const used = plan.gpus.filter(gpu => gpu.replicas.length);
  const bars = (field, title) => chart(gpus, () => ({
    legend: { data: names }, grid: { left: 150, bottom: 44 }, xAxis: { type: "value", name: title, nameLocation: "middle", nameGap: 26, max: v => Math.max(100, v.max) },
    yAxis: { type: "category", inverse: true, data: used.map(g => g.id), axisLabel: { width: 140, overflow: "truncate" } }, tooltip: { valueFormatter: v => percent(v) },
    series: names.map(name => ({ name, type: "bar", stack: "all", data: used.map(gpu => {
      const mine = gpu.replicas.filter(r => r.model === name && r[field] !== null);
      return mine.length ? mine.reduce((sum, r) => sum + r[field], 0) : null;
    }) })),
  }), title, used.length > 6);
  bars("creq_pct", "compute, % of the GPU");
  bars("mreq_pct", "memory, % of the GPU");
  const slack = section(main, "Slack", "How much of its objective a model leaves: the objective less the longest wait for its batch and the batch itself, at the upper end of the interval where it is known.");
  const rows = replicas.map(r => ({ ...r, worst: (r.max_wait_ms || 0) + (r.latency_high_ms === null ? r.latency_ms : r.latency_high_ms) })).map(r => ({ ...r, slack: r.slo_ms - r.worst }));
  table(slack, [
    ["model", r => r.model, false], ["GPU", r => r.gpu, false], ["batch", r => r.batch_size, true], ["share of SMs", r => percent(r.sm_share_pct), true],
    ["serves", r => rate(r.goodput_rps) + " /s", true], ["could", r => rate(r.throughput_rps) + " /s", true], ["waits at most", r => ms(r.max_wait_ms), true], ["batch takes", r => ms(r.latency_ms), true], ["objective", r => ms(r.slo_ms), true],
    ["slack", r => make("span", { class: r.slack >= 0 ? "good" : "bad", textContent: ms(r.slack) }), true],
  ], rows);
  if (plan.unserved.length) {
    const part = section(main, "Not served");
    table(part, [["model", u => u.model, false], ["requests a second", u => rate(u.rate_rps), true], ["why", u => u.reason, false]], plan.unserved);
  }
};

// ---------------------------------------------------------------- a simulation
views.simulation = function () {
  const report = doc.report, totals = report.totals, models = report.models;
  const verdict = section(main, "Verdict");
  cardsOf(verdict, [
    ["On time", percent(totals.on_time_pct), "of the requests that arrived", totals.on_time_pct >= 99 ? "good" : "bad"],
    ["Requests on time", `${rate(totals.goodput_rps)} a second`, `the plan promised ${rate(totals.promised_goodput_rps)}`],
    ["Half answered within", ms(totals.latency_p50_ms), `99 of 100 within ${ms(totals.latency_p99_ms)}`],
    ["Turned away or given up", `${rate(totals.rejected_rps + totals.dropped_rps)} a second`, `${totals.gpus_used} GPUs used`],
  ]);
  const latency = section(main, "Latency", "How many of a model's requests were answered within a time. The vertical lines are the objectives.");
  const known = models.filter(m => m.latency_quantiles_ms);
  chart(latency, () => ({
    legend: { data: known.map(m => m.model) }, xAxis: { type: "log", name: "ms", nameLocation: "middle", nameGap: 26, min: "dataMin" }, yAxis: { type: "value", name: "answered, %", max: 100 },
    tooltip: { formatter: p => `${p.seriesName}\n${number(p.value[1])} % within ${ms(p.value[0])}` },
    series: known.map((m, i) => ({ name: m.model, type: "line", color: PALETTE[i % PALETTE.length], symbolSize: 4, data: m.latency_quantiles_ms.map((v, q) => [Math.max(v, 1e-3), doc.quantiles[q]]),
      markLine: m.slo_ms ? { symbol: "none", silent: true, lineStyle: { color: PALETTE[i % PALETTE.length], type: "dashed" }, label: { formatter: `${number(m.slo_ms)} ms`, color: style("--soft") }, data: [{ xAxis: m.slo_ms }] } : undefined })),
  }), "Share of requests answered within a time", true);
  const time = section(main, "Over time", `In windows of ${number(report.settings.window_s)} s: the share answered on time, and how long requests waited for their batch and their turn.`);
  const pair = make("div", { class: "pair" });
  time.append(pair);
  const window = report.settings.window_s;
  const over = (value, unit, max) => () => ({
    legend: { data: report.timeline.map(t => t.model) }, xAxis: { type: "value", name: "s", nameLocation: "middle", nameGap: 26 }, yAxis: { type: "value", name: unit, max, min: 0 },
    tooltip: { trigger: "item", formatter: p => `${p.seriesName}\n${number(p.value[0])} s: ${number(p.value[1])} ${unit}` },
    series: report.timeline.map(t => ({ name: t.model, type: "line", step: "start", symbol: "none", data: t.arrived.map((n, i) => [i * window, value(t, i)]) })),
  });
  chart(pair, over((t, i) => t.arrived[i] ? 100 * t.on_time[i] / t.arrived[i] : null, "on time, %", 100), "Share on time over time");
  chart(pair, over((t, i) => t.wait_mean_ms[i], "mean wait, ms"), "Mean wait over time");
  const all = section(main, "Models");
  table(all, [
    ["model", m => m.model, false], ["asked", m => rate(m.asked_rps) + " /s", true], ["on time", m => percent(m.on_time_pct), true], ["objective", m => ms(m.slo_ms), true], ["p50", m => ms(m.latency_p50_ms), true], ["p99", m => ms(m.latency_p99_ms), true],
    ["waits for batch", m => ms(m.router && m.router.mean_ms), true], ["queues", m => ms(m.queue && m.queue.mean_ms), true], ["on the GPU", m => ms(m.gpu && m.gpu.mean_ms), true], ["mean batch", m => number(m.batch_mean), true],
  ], models);
  const gpus = section(main, "GPUs");
  table(gpus, [["GPU", g => g.id, false], ["busy", g => percent(g.busy_pct), true], ["compute used", g => percent(g.cuti_pct), true], ["memory planned", g => percent(g.muti_pct), true]], report.gpus);
};

// ---------------------------------------------------------------- a comparison
views.comparison = function () {
  const rows = doc.rows.filter(r => r.status === "ok");
  const policies = [...new Set(doc.rows.map(r => r.policy))];
  const mean = list => list.length ? list.reduce((a, b) => a + b, 0) / list.length : null;
  const of = (policy, field) => mean(rows.filter(r => r.policy === policy && r[field] !== null).map(r => r[field]));
  const verdict = section(main, "Means over all cells", "Cells that a policy refused or failed count in the last column alone.");
  table(verdict, [
    ["policy", p => p, false], ["cells", p => String(rows.filter(r => r.policy === p).length), true], ["requests on time /s", p => rate(of(p, "goodput_rps")), true], ["on time", p => percent(of(p, "on_time_pct")), true],
    ["p99", p => ms(of(p, "latency_p99_ms")), true], ["GPUs", p => number(of(p, "gpus_used")), true], ["$ an hour", p => number(of(p, "cost_per_hour")), true],
    ["refused or failed", p => String(doc.rows.filter(r => r.policy === p && r.status !== "ok").length), true],
  ], policies);
  const axis = ["rate_scale", "slo_scale"].find(name => new Set(rows.map(r => r[name])).size > 1) || "rate_scale";
  const words = { rate_scale: "load, times the workload's", slo_scale: "objectives, times the workload's" }[axis];
  for (const [field, title, unit] of [["on_time_pct", "On time", "%"], ["goodput_rps", "Requests on time", "a second"], ["gpus_used", "GPUs used", ""]]) {
    const part = section(main, title);
    chart(part, () => ({
      legend: { data: policies }, xAxis: { type: "value", name: words, nameLocation: "middle", nameGap: 26, scale: true }, yAxis: { type: "value", name: unit, scale: field !== "goodput_rps" },
      tooltip: { trigger: "item", formatter: p => `${p.seriesName}\n${number(p.value[0])}: ${number(p.value[1], 4)} ${unit}` },
      series: policies.map(policy => ({ name: policy, type: "line", symbolSize: 6, data: [...new Set(rows.map(r => r[axis]))].sort((a, b) => a - b)
        .map(x => [x, mean(rows.filter(r => r.policy === policy && r[axis] === x && r[field] !== null).map(r => r[field]))]) })),
    }), title);
  }
};

// ---------------------------------------------------------------- the page
function theme(name) {
  document.documentElement.dataset.theme = name;
  for (const drawn of charts) draw(drawn);
}
document.querySelector("h1").textContent = doc.title;
document.getElementById("subtitle").textContent = doc.subtitle;
document.getElementById("closing").textContent = doc.closing;
const toggle = document.getElementById("theme");
toggle.addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
views[doc.kind]();
addEventListener("resize", () => { for (const drawn of charts) drawn.instance.resize(); });
