// ---------------------------------------------------------------- models on GPUs
views.models = function () {
  const rows = doc.rows;
  const keyOf = (r, ...names) => JSON.stringify(names.map(name => r[name]));
  const LINE = ["model", "gpu", "runtime", "batch_size", "dims", "sm_share_pct"];
  // Under `auto` each GPU has a dtype of its own; only where one GPU has several does it tell cases apart.
  const dtypes = distinct(rows.map(r => keyOf(r, ...LINE))).length < rows.length;
  const caseOf = r => keyOf(r, "runtime", "dims", "sm_share_pct", ...(dtypes ? ["dtype"] : []));
  const state = { model: rows[0].model, gpu: rows[0].gpu, batch: rows[0].batch_size, kind: caseOf(rows[0]) };

  const controls = make("div", { class: "controls" });
  main.append(controls);
  const verdicts = section(main, "Verdict", "One card a GPU, for one batch. Below the latency stands its 90 % interval: nine of ten measurements are expected inside. Choose a card to see that GPU in the pictures below.");
  const cards = make("div", { class: "cards" });
  verdicts.append(cards);
  const rest = make("div");
  main.append(rest);

  const ofModel = r => r.model === state.model && caseOf(r) === state.kind;
  const same = r => ofModel(r) && r.batch_size === state.batch;
  function caseText(row, all) {
    const differs = name => distinct(all.map(r => r[name])).length > 1;
    const words = [];
    if (differs("runtime")) words.push(row.runtime);
    if (differs("dims")) words.push(row.dims || "no dimensions");
    if (differs("sm_share_pct")) words.push(`${row.sm_share_pct} % of the SMs`);
    if (dtypes && differs("dtype")) words.push(row.dtype);
    return words.join(", ");
  }
  function show() {
    const mine = rows.filter(r => r.model === state.model);
    const models = distinct(rows.map(r => r.model)), cases = distinct(mine.map(caseOf));
    const batches = distinct(mine.filter(ofModel).map(r => r.batch_size)), gpus = distinct(mine.filter(same).map(r => r.gpu));
    controls.replaceChildren();
    choice(controls, "Model", models, models, state.model, v => settle({ model: v }));
    choice(controls, "Case", cases, cases.map(c => caseText(mine.find(r => caseOf(r) === c), mine)), state.kind, v => settle({ kind: v }));
    choice(controls, "Batch", batches, batches.map(b => b === null ? "none" : count(b)), state.batch, v => settle({ batch: v }));
    choice(controls, "GPU", gpus, gpus, state.gpu, v => settle({ gpu: v }));
    controls.hidden = !controls.children.length;
    cards.replaceChildren(...rows.filter(same).map(card));
    clear(rest);
    details(rest, rows.find(r => same(r) && r.gpu === state.gpu));
  }
  // What was chosen before may not exist under a new model: take its first row that agrees with most.
  function settle(change) {
    Object.assign(state, change);
    const mine = rows.filter(r => r.model === state.model);
    if (!mine.some(ofModel)) state.kind = caseOf(mine[0]);
    if (!mine.some(same)) state.batch = mine.find(ofModel).batch_size;
    if (!mine.some(r => same(r) && r.gpu === state.gpu)) state.gpu = mine.find(same).gpu;
    show();
  }
  function card(row) {
    if (row.kernels === 0) return idle(row);
    const fits = !known(row.mreq_bytes) ? ["warn", "memory not known"] : row.unknown_kernels ? ["warn", "needs at least"] : !known(row.mreq_pct) ? ["warn", "the GPU's memory is not known"] : row.mreq_pct <= 100 ? ["good", "fits"] : ["bad", "does not fit"];
    const interval = known(row.latency_high_ms) ? `${number(row.latency_low_ms)} to ${ms(row.latency_high_ms)}` : known(row.latency_low_ms) ? `at least ${ms(row.latency_low_ms)}` : "no interval known";
    const binds = row.host_bound === null ? "" : row.host_bound ? "the host sets the time" : "the GPU sets the time";
    const price = known(row.usd_per_million) ? `$${number(row.usd_per_million)} a million samples` + (row.price_date ? ` (price of ${row.price_date})` : "") : "price not known";
    const button = make("button", { class: "card", type: "button", "aria-pressed": String(row.gpu === state.gpu) },
      make("b", { textContent: row.gpu }), make("span", { class: "big", textContent: ms(row.latency_ms) }), make("div", { class: "soft", textContent: interval }),
      make("div", { textContent: known(row.throughput_rps) ? `${number(row.throughput_rps)} samples a second` : "" }),
      make("div", {}, make("span", { class: fits[0], textContent: fits[1] }), known(row.mreq_bytes) ? `: ${bytes(row.mreq_bytes)}` + (known(row.mreq_pct) ? `, ${percent(row.mreq_pct)} of its memory` : "") : ""),
      make("div", { class: "soft", textContent: [row.dtype, binds].filter(Boolean).join(" · ") }), make("div", { class: "soft", textContent: price }));
    button.addEventListener("click", () => { settle({ gpu: row.gpu }); cards.querySelector("[aria-pressed=true]").focus(); });
    return button;
  }
  // Nothing of the model runs on the GPU: no latency, no verdict.
  function idle(row) {
    const button = make("button", { class: "card", type: "button", "aria-pressed": String(row.gpu === state.gpu) }, make("b", { textContent: row.gpu }), make("span", { class: "warn", textContent: "nothing runs on the GPU" }));
    button.addEventListener("click", () => settle({ gpu: row.gpu }));
    return button;
  }
  function details(parent, row) {
    const name = `${row.model} on ${row.gpu}${row.batch_size === null ? "" : `, batch ${row.batch_size}`}`;
    if (row.warnings) parent.append(make("div", { class: "warn" }, "Know before use:", make("ul", {}, ...row.warnings.split("; ").map(w => make("li", { textContent: w })))));
    const detail = doc.details[row.id];
    const program = detail && doc.programs[detail.program];
    const launches = detail && unpack(detail, program);
    const tree = detail && treeOf(launches, program);
    whereTimeGoes(parent, row, launches, tree, name);
    if (detail) {
      timeline(parent, launches, program, detail, name);
      roofline(parent, row, launches, name);
    }
    batches(parent, row);
    if (detail) {
      memory(parent, row, program, name);
      layers(parent, tree);
    }
    everything(parent);
  }
  function unpack(detail, program) {
    const kernels = program.kernels;
    return program.kernel.map((k, i) => ({
      ...Object.fromEntries(Object.keys(kernels).map(key => [key, kernels[key][k]])),
      us: detail.us[k], low: detail.low[k], high: detail.high[k], trust: detail.trust[k], bound: detail.bound[i], start: detail.start[i],
      all: detail.us[k] * program.repeat[i], stream: detail.stream.length ? detail.stream[i] : 0, repeat: program.repeat[i],
      step: program.step[i], operator: program.operators[program.step[i]], type: program.types[program.step[i]],
    }));
  }
  function grouped(launches, key) {
    const groups = new Map();
    for (const launch of launches) {
      const of = key(launch);
      const group = groups.get(of) || { ...launch, name: of, us: 0, times: 0 };
      group.us += launch.all;
      group.times += launch.repeat;
      groups.set(of, group);
    }
    return [...groups.values()].sort((a, b) => b.us - a.us);
  }

  const SIDE = { compute: "compute", memory: "memory", latency: "small", host: "small" };
  const HELD = { compute: "arithmetic", memory: "memory", latency: "too small", host: "shorter than its launch" };
  const PARTS = [["compute", "GPU: compute", "#0072b2"], ["memory", "GPU: memory traffic", "#56b4e9"], ["small", "GPU: small kernels", "#e69f00"], ["gpu", "GPU works", "#0072b2"],
    ["wait", "GPU waits for the host", "#9aa3ab"], ["copy", doc.copy_counts ? "copies of inputs and outputs" : "copies (on top of the latency)", "#cc79a7"]];
  // Milliseconds by part. Kernels that overlap on several streams share the GPU's time.
  function partsOf(row) {
    const detail = doc.details[row.id];
    const copy = doc.copy_counts === null ? 0 : row.copy_ms || 0; // a saved table does not say whether it counts
    const latency = row.latency_ms - (doc.copy_counts ? copy : 0);
    if (!known(row.gpu_ms) || !known(row.latency_ms)) return null;
    const working = Math.min(row.gpu_ms, latency), parts = { wait: latency - working, copy };
    if (!detail) return { ...parts, gpu: working };
    const launches = unpack(detail, doc.programs[detail.program]), busy = sum(launches.map(l => l.all)) || 1;
    for (const l of launches) parts[SIDE[l.bound]] = (parts[SIDE[l.bound]] || 0) + working * l.all / busy;
    return parts;
  }
  const timeBars = (data, title) => () => ({
    title, grid: { left: narrow() ? 104 : 150, top: 34, right: 56 }, xAxis: below("ms of GPU time"), yAxis: named(data.map(d => d.name), narrow() ? 94 : 140),
    tooltip: { formatter: p => `${data[p.dataIndex].name}\n${ms(p.value)}` },
    series: [{ type: "bar", data: data.map(d => d.us / 1000), itemStyle: { color: hue(0) }, label: { show: true, position: "right", color: style("--soft"), formatter: p => percent(100 * data[p.dataIndex].us / sum(data.map(d => d.us))) } }],
  });
  function firstOf(groups, most) {
    if (groups.length <= most) return groups;
    return [...groups.slice(0, most - 1), { name: `${groups.length - most + 1} others`, us: sum(groups.slice(most - 1).map(g => g.us)) }];
  }
  function whereTimeGoes(parent, row, launches, tree, name) {
    const shown = rows.filter(r => same(r) && r.kernels !== 0).map(r => ({ row: r, parts: partsOf(r) })).filter(s => s.parts).slice(0, 40);
    if (!shown.length) return;
    const words = [];
    if (known(row.gpu_ms)) words.push(`On ${row.gpu} the GPU works ${ms(row.gpu_ms)} of the ${ms(row.latency_ms)}.`);
    if (known(row.host_ms) && known(row.kernels)) words.push(`To issue ${count(row.kernels)} kernels takes the host ${ms(row.host_ms)}` + (row.host_bound ? ", longer than the GPU needs: a faster GPU would hardly help." : "."));
    if (known(row.copy_ms) && doc.copy_counts !== null) words.push(`Copying inputs and outputs takes ${time(row.copy_ms * 1000)}` + (doc.copy_counts ? ", which the latency holds." : ", which does not count here: they are taken to lie on the GPU."));
    const part = section(parent, "Where the time goes", words.join(" "));
    const longest = Math.max(...shown.map(s => s.row.latency_ms));
    const used = PARTS.filter(([key]) => shown.some(s => s.parts[key] > 0.002 * longest));
    chart(part, () => ({
      legend: {}, grid: { left: narrow() ? 104 : 210, top: narrow() ? 44 : 40 }, xAxis: below("ms"), yAxis: named(shown.map(s => narrow() ? s.row.gpu : `${s.row.gpu}: ${ms(s.row.latency_ms)}`), narrow() ? 96 : 200),
      tooltip: { formatter: p => `${shown[p.dataIndex].row.gpu}\n${p.seriesName}: ${ms(p.value)}` },
      series: used.map(([key, text, color]) => ({ name: text, type: "bar", stack: "all", barMaxWidth: 22, itemStyle: { color, opacity: key === "copy" ? 0.6 : 1 }, data: shown.map(s => s.parts[key] || 0) })),
    }), `What the latency consists of, by GPU: ${shown.map(s => `${s.row.gpu} ${ms(s.row.latency_ms)}`).join(", ")}`,
      (launches ? "The latency of one batch on each GPU, divided. Compute: kernels that arithmetic holds up; memory traffic: those that wait for data; small: those shorter than their launch by the host, or too small to fill the GPU. "
        : "The latency of one batch on each GPU, divided. ") + "Grey: the GPU stands still, because the host has not issued the next kernel yet.", { lanes: shown.length });
    if (!launches) {
      part.append(make("p", { class: "note", textContent: "The kernels of this row are not in this page (a saved table has none, and a page holds 60,000 launches): gkest estimate --report with fewer combinations shows them." }));
      return;
    }
    const busy = sum(launches.map(l => l.all));
    const pair = make("div", { class: "pair" });
    part.append(pair);
    const types = firstOf(grouped(launches, l => l.type), 14);
    chart(pair, timeBars(types, "By operator"), `Time by operator of ${name}: ${types.map(t => `${t.name} ${ms(t.us / 1000)}`).join(", ")}`, "GPU time of all operators of a type. A type that ONNX lacks is a group that the runtime runs as one.", { lanes: types.length });
    const modules = firstOf(modulesOf(tree), 14);
    if (tree.ofModules && modules.length > 1) chart(pair, timeBars(modules, "By module"), `Time by module of ${name}: ${modules.map(t => `${t.name} ${ms(t.us / 1000)}`).join(", ")}`, "GPU time of the network's parts, by the names that its exporter wrote. The section Layers opens each.", { lanes: modules.length });
    const top = grouped(launches, l => `${l.name}\u0000${l.shape}`).slice(0, 20);
    part.append(make("p", { class: "soft", textContent: `The ${top.length} kernels that take most of it. Launches of one kernel with equal shapes stand together; "held up by" says what would have to be faster, "trust" whether such a kernel was learned from measurements.` }));
    table(part, "Kernels", [
      ["kernel", t => t.name.split("\u0000")[0], false], ["shape", t => make("code", { textContent: t.name.split("\u0000")[1] || UNKNOWN }), false],
      ["launches", t => count(t.times), true], ["each", t => time(t.us / t.times), true], ["all", t => time(t.us), true], ["share", t => percent(100 * t.us / busy), true],
      ["held up by", t => whole(HELD[t.bound] || UNKNOWN), false], ["trust", t => whole(TRUST[t.trust][0]), false],
    ], top);
  }

  function timeline(parent, launches, program, detail, name) {
    const part = section(parent, "Timeline");
    const lanes = 1 + Math.max(...launches.map(l => l.stream));
    const host = [];
    let done = 0;
    program.calls.forEach((calls, i) => {
      const us = calls * detail.host_us;
      if (us > 0) host.push([0, done, done + us, program.operators[i]]);
      done += us;
    });
    const groups = new Map(grouped(launches, l => l.family).slice(0, HUES.length - 1).map(g => [g.name, []]));
    for (const l of launches) {
      const family = groups.has(l.family) ? l.family : "other kernels";
      if (!groups.has(family)) groups.set(family, []);
      groups.get(family).push([1 + l.stream, l.start, l.start + l.all, `${l.operator}\n${l.name} ${l.shape}`]);
    }
    const end = Math.max(done, ...launches.map(l => l.start + l.all));
    const [unit, scale] = end >= 10000 ? ["ms", 1000] : ["µs", 1];
    const bar = (params, api) => {
      const from = api.coord([api.value(1), api.value(0)]), to = api.coord([api.value(2), api.value(0)]), height = api.size([0, 1])[1] * 0.7;
      return { type: "rect", shape: echarts.graphic.clipRectByRect({ x: from[0], y: from[1] - height / 2, width: Math.max(to[0] - from[0], 0.7), height }, params.coordSys), style: { fill: api.visual("color") } };
    };
    const lane = (text, color, data) => ({ name: text, type: "custom", clip: true, encode: { x: [1, 2], y: 0 }, itemStyle: { color }, data, renderItem: bar });
    chart(part, () => ({
      legend: {}, grid: { left: narrow() ? 46 : 66, bottom: 92 }, dataZoom: [{ type: "slider", filterMode: "weakFilter", bottom: 8, height: 24, showDetail: false, brushSelect: false }, { type: "inside", filterMode: "weakFilter", zoomOnMouseWheel: "ctrl" }],
      xAxis: { ...below(`${unit} since the host began`), min: 0, max: end, axisLabel: { formatter: v => exact(v / scale), showMaxLabel: false } }, yAxis: { type: "category", data: ["host", ...(lanes > 1 ? Array.from({ length: lanes }, (_, i) => `stream ${i}`) : ["GPU"])], inverse: true },
      tooltip: { formatter: p => `${p.value[3]}\n${time(p.value[2] - p.value[1])}, from ${time(p.value[1])} on` },
      series: [lane("host issues", style("--soft"), host), ...[...groups].map(([family, data], i) => lane(family, family === "other kernels" ? hue(HUES.length - 1) : hue(i), data))],
    }), `Timeline of ${name}: the host is done after ${time(done)}, the GPU after ${time(end)}`,
      `One inference of ${name}. Upper lane: the host issues one operator after another. Lower lane${lanes > 1 ? "s" : ""}: the kernels that the GPU runs, coloured by kind; where there are gaps, the GPU waits. ${ZOOM}`, { zoom: true });
  }

  const TRUST = [["in range", "inside the trained range"], ["out of range", "learned, but from other sizes or GPUs"], ["calculated", "calculated, not learned"]];
  function roofline(parent, row, launches, name) {
    const part = section(parent, "Roofline");
    const seen = new Set(), longest = Math.max(...launches.map(k => k.us));
    const dots = launches.filter(l => l.flops > 0 && l.bytes > 0 && l.us > 0 && !seen.has(l.id) && seen.add(l.id));
    const intensities = [1, 100, ...dots.map(l => l.flops / l.bytes), ...row.roofs.map(roof => roof.flops_per_s / row.dram_bytes_per_s)];
    const left = 10 ** Math.floor(Math.log10(Math.min(...intensities))), right = 10 ** Math.ceil(Math.log10(Math.max(...intensities)));
    const lowest = Math.min(1, ...dots.map(l => l.flops / l.us / 1e6));
    const series = () => [
      ...TRUST.map(([, text], trust) => ({
        name: text, type: "scatter", symbol: ["circle", "triangle", "diamond"][trust], itemStyle: { color: [hue(0), hue(4), hue(3)][trust], opacity: .8 },
        data: dots.filter(l => l.trust === trust).map(l => ({ value: [l.flops / l.bytes, l.flops / l.us / 1e6, `${l.name} ${l.shape}\n${time(l.us)} (${number(l.low)} to ${time(l.high)})`], symbolSize: 5 + 15 * Math.sqrt(l.us / longest) })),
      })).filter(s => s.data.length),
      ...row.roofs.map((roof, i) => ({
        name: `limit in ${roof.name}`, type: "line", symbol: "none", silent: true, color: style("--soft"), lineStyle: { width: 1.5, type: i ? "dashed" : "solid", color: style("--soft") },
        data: [[left, left * row.dram_bytes_per_s / 1e12], [roof.flops_per_s / row.dram_bytes_per_s, roof.flops_per_s / 1e12], [right, roof.flops_per_s / 1e12]],
      })),
    ];
    const tick = { formatter: v => v >= 1e4 || v < 1e-3 ? v.toExponential(0) : String(Number(v.toPrecision(1))) };
    chart(part, () => ({
      legend: { data: series().map(s => s.type === "line" ? { name: s.name, icon: "path://M0,8 L20,8 L20,11 L0,11 Z" } : s.name) }, grid: { top: 60 }, xAxis: { ...below("FLOP per byte moved (log scale)"), type: "log", min: left, max: right, axisLabel: tick },
      yAxis: { type: "log", name: "TFLOP/s (log scale)", nameTextStyle: { align: "left", color: style("--soft") }, min: 10 ** Math.floor(Math.log10(lowest)), axisLabel: tick },
      tooltip: { formatter: p => p.value[2] || "" }, series: series(),
    }), `Roofline of ${name}: ${dots.length} kernels under the limits of ${row.gpu}`,
      `A mark is a kernel: to the right, the more it calculates for every byte it reads or writes; upwards, the faster it calculates; larger marks take longer. The lines are what ${row.gpu} can do at most: on the slope its memory is the limit, on the flat part its arithmetic. A mark far below leaves much of the GPU unused; one above would find its data in the cache. Colour and form say how far to trust the mark. Kernels that only copy are not drawn.`, { tall: true });
  }

  function batches(parent, row) {
    const mine = rows.filter(r => ofModel(r) && r.batch_size !== null && known(r.latency_ms));
    const sizes = distinct(mine.map(r => r.batch_size)).sort((a, b) => a - b);
    if (sizes.length < 2) return;
    const part = section(parent, "Batch sizes, GPUs side by side");
    const pair = make("div", { class: "pair" });
    part.append(pair);
    const gpus = distinct(mine.map(r => r.gpu)).slice(0, 3 * HUES.length);
    const banded = gpus.length <= 6 ? gpus : gpus.filter(gpu => gpu === row.gpu);
    const at = gpu => mine.filter(r => r.gpu === gpu).sort((a, b) => a.batch_size - b.batch_size);
    const lines = value => gpus.map((gpu, i) => ({ name: gpu, type: "line", ...lineLook(i), data: at(gpu).map(r => [r.batch_size, value(r), r.mreq_pct > 100 ? "\ndoes not fit" : ""]) }));
    // A polygon: stacked areas would not stand on a logarithmic axis.
    const band = (low, high) => banded.map(gpu => {
      const ends = at(gpu).filter(r => known(r.latency_low_ms) && known(r.latency_high_ms));
      const outline = [...ends.map(r => [r.batch_size, low(r)]), ...ends.reverse().map(r => [r.batch_size, high(r)])];
      return { name: gpu, type: "custom", silent: true, clip: true, z: 1, color: hue(gpus.indexOf(gpu)), tooltip: { show: false }, data: outline.length ? [0] : [],
        renderItem: (params, api) => ({ type: "polygon", shape: { points: outline.map(point => api.coord(point)) }, style: { fill: hue(gpus.indexOf(gpu)), opacity: .16 } }) };
    });
    const axis = () => ({ ...below("batch size (log scale)"), type: "log", logBase: 2, min: sizes[0], max: sizes[sizes.length - 1], axisLabel: { formatter: v => count(Math.round(v)) } });
    const option = (title, value, yAxis, low, high, unit) => () => ({
      legend: { data: gpus }, grid: { top: 64 }, xAxis: axis(), yAxis: { ...yAxis, name: title, nameTextStyle: { align: "left", color: style("--soft") } },
      tooltip: { trigger: "item", formatter: p => `${p.seriesName}\nbatch ${count(p.value[0])}: ${number(p.value[1])} ${unit}${p.value[2]}` }, series: [...lines(value), ...band(low, high)],
    });
    const values = mine.flatMap(r => [r.latency_low_ms || r.latency_ms, r.latency_high_ms || r.latency_ms]);
    const logarithmic = { type: "log", min: niceBelow(Math.min(...values)), max: niceAbove(Math.max(...values)), axisLabel: { formatter: v => number(v, 1) } };
    chart(pair, option("latency, ms (log scale)", r => r.latency_ms, logarithmic, r => r.latency_low_ms, r => r.latency_high_ms, "ms"), "Latency by batch size, a line a GPU", "How long one batch takes. Lines: " + (mine.every(r => r.source === "measured") ? "measurements" : "estimates") + "; bands: their 90 % intervals, where known" + (banded.length < gpus.length ? ` (drawn for ${row.gpu} alone).` : "."));
    const perSecond = field => r => r.batch_size / r[field] * 1000;
    chart(pair, option("samples a second", r => r.throughput_rps ?? perSecond("latency_ms")(r), { type: "value", min: 0, max: v => niceAbove(Math.max(v.max, ...mine.filter(r => r.latency_low_ms).map(perSecond("latency_low_ms")))), axisLabel: { formatter: v => count(v) } }, perSecond("latency_high_ms"), perSecond("latency_low_ms"), "samples a second"), "Throughput by batch size, a line a GPU", "Samples a second. Where a line becomes flat, a larger batch costs latency and gains nothing.");
  }
  const niceBelow = v => { const power = 10 ** Math.floor(Math.log10(v)); return power * (v >= 5 * power ? 5 : v >= 2 * power ? 2 : 1); };
  const niceAbove = v => { const power = 10 ** Math.floor(Math.log10(v)); return power * (v <= 2 * power ? 2 : v <= 5 * power ? 5 : 10); };

  function memory(parent, row, program, name) {
    const peak = program.peak;
    const part = section(parent, "Memory", `${bytes(row.mreq_bytes)} on the GPU in all: weights ${bytes(row.weights_bytes)}, activations at their peak ${bytes(row.activations_bytes)}, libraries' scratch ${bytes(row.workspace_bytes)}, the allocator's rounding ${bytes(row.allocator_bytes)}, the CUDA context ${bytes(row.context_bytes)}. Calculated, not measured.`);
    const top = program.live.indexOf(Math.max(...program.live));
    chart(part, () => ({
      grid: { top: 40, bottom: 78, left: 70 }, xAxis: { type: "category", data: program.operators, axisTick: { show: false }, axisLabel: { show: false }, name: "operators, in the order in which they run", nameLocation: "middle", nameGap: 14 },
      yAxis: { type: "value", name: "MiB", axisLabel: { formatter: v => count(v) } }, dataZoom: [{ type: "slider", bottom: 8, height: 24, showDetail: false, brushSelect: false }],
      tooltip: { trigger: "axis", formatter: p => `${p[0].name}\n${number(p[0].value)} MiB` },
      series: [{ type: "line", step: "end", symbol: "none", sampling: "max", lineStyle: { color: hue(0) }, itemStyle: { color: hue(0) }, areaStyle: { opacity: .25 }, data: program.live.map(b => b / 2 ** 20),
        markPoint: { symbol: "circle", symbolSize: 9, itemStyle: { color: hue(1) }, label: { formatter: "peak", color: style("--ink"), position: top < program.live.length / 2 ? "right" : "left" }, data: [{ coord: [top, program.live[top] / 2 ** 20] }] } }],
    }), `Memory of inputs, activations and outputs over the operators of ${name}; peak ${bytes(program.live[top])} at ${peak.step}`,
      `Inputs, intermediate results and outputs that are alive while each operator runs; weights (${bytes(row.weights_bytes)}) come on top all the time. ${ZOOM}`, { zoom: true });
    part.append(make("p", { class: "soft" }, "Alive at the peak, while ", make("code", { textContent: peak.step }), " runs:"));
    const more = peak.others ? [[`${count(peak.others)} more`, peak.others_bytes]] : [];
    table(part, "Alive at the peak", [["tensor", p => make("code", { textContent: p[0] }), false], ["size", p => bytes(p[1]), true], ["of the peak", p => percent(100 * p[1] / (program.live[top] || 1)), true]], [...peak.alive, ...more]);
  }

  // The modules of a path, one a word: "layer1/layer1.0/conv1" repeats what it is inside of, "layer1.0/conv1" does not.
  function modulesIn(path) {
    const words = [];
    let around = "";
    for (const step of path.split("/").filter(part => part)) {
      const own = around && step.startsWith(`${around}.`) ? step.slice(around.length + 1) : step;
      words.push(...own.split(".").filter(part => part));
      around = step;
    }
    return words;
  }
  // Launches by module: scopes where the exporter noted them, else the paths in the names, else types of operators.
  function treeOf(launches, program) {
    const slashes = program.operators.some(name => name.includes("/"));
    const root = { name: "", us: 0, weights: 0, alive: 0, children: new Map(), ofModules: slashes || program.paths.length > 0 };
    const add = (node, l) => { node.us += l.all; node.weights += l.weights; node.alive = Math.max(node.alive, program.live[l.step]); };
    for (const l of launches) {
      const path = program.paths.length ? [...modulesIn(program.paths[l.step] || ""), l.operator] : slashes ? modulesIn(l.operator) : [l.type, l.operator];
      let node = root;
      add(root, l);
      for (const word of path) {
        if (!node.children.has(word)) node.children.set(word, { name: word, us: 0, weights: 0, alive: 0, children: new Map() });
        node = node.children.get(word);
        add(node, l);
      }
    }
    return root;
  }
  // The modules worth a bar: the one that holds nearly all of the time is replaced by what is inside.
  function modulesOf(tree) {
    let parts = [...tree.children.values()];
    for (;;) {
      const most = parts.reduce((a, b) => b.us > a.us ? b : a, { us: 0, children: new Map() });
      if (most.us < 0.6 * tree.us || !most.children.size) break;
      parts = parts.flatMap(part => part === most ? [...most.children.values()].map(child => ({ ...child, name: `${most.name}/${child.name}` })) : [part]);
    }
    return parts.sort((a, b) => b.us - a.us);
  }
  const MOST_CHILDREN = 200;
  function layers(parent, root) {
    const part = section(parent, "Layers", (root.ofModules ? "The network by the names that its exporter gave." : "The file says nothing of the network's modules, so its operators stand by type.") +
      " Time: of its kernels on the GPU. Weights: what they read of them. Alive: the most that inputs, intermediate results and outputs take while it runs. Open a line (Enter) to see what is inside.");
    part.append(make("div", { class: "line head" }, make("span", { textContent: root.ofModules ? "module" : "operators" }), ...["share", "time", "weights", "alive"].map(text => make("span", { class: "n", textContent: text }))));
    const cells = node => [make("span", { class: "n", title: percent(100 * node.us / root.us) }, make("span", { class: "bar", style: `width:${Math.max(1, 56 * node.us / root.us)}px` })),
      ...[time(node.us), bytes(node.weights), bytes(node.alive)].map(text => make("span", { class: "n", textContent: text }))];
    // Children are made when their layer is opened: a decoder has thousands.
    const line = node => {
      while (node.children.size === 1 && [...node.children.values()][0].children.size) {
        const only = [...node.children.values()][0];
        node = { ...only, name: `${node.name}/${only.name}` };
      }
      const name = make("span", { class: "name", textContent: node.name });
      if (!node.children.size) return make("div", { class: "line leaf" }, name, ...cells(node));
      const box = make("details", {}, make("summary", { class: "line" }, name, ...cells(node)));
      box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(...inside(node)); }, { once: true });
      return box;
    };
    const inside = node => {
      const lines = [...node.children.values()].slice(0, MOST_CHILDREN).map(line);
      if (node.children.size > MOST_CHILDREN) lines.push(make("p", { class: "note", textContent: `and ${count(node.children.size - MOST_CHILDREN)} more` }));
      return lines;
    };
    part.append(...inside(root));
  }

  function everything(parent) {
    const alike = [["runtime", "runtime"], ["dtype", "dtype"], ["source", "times from"]].filter(([key]) => distinct(rows.map(r => r[key])).length === 1);
    const text = (heading, key) => alike.some(([k]) => k === key) ? [] : [[heading, r => r[key], false]];
    const part = section(parent, "All rows", `Everything that was asked${alike.length ? " (of all: " + alike.map(([key, words]) => `${words} ${rows[0][key]}`).join(", ") + ")" : ""}. Of GPU: of its memory. In range: the share of the kernels' time that was predicted for sizes and GPUs that the models learned from.`);
    table(part, "All rows", [
      ["model", r => r.model, false], ["GPU", r => whole(r.gpu), false], ...text("runtime", "runtime"), ...text("dtype", "dtype"),
      ...(rows.some(r => r.dims) ? [["dims", r => r.dims, false]] : []), ...(rows.some(r => r.sm_share_pct !== 100) ? [["of the SMs", r => percent(r.sm_share_pct), true]] : []),
      ["batch", r => r.batch_size === null ? UNKNOWN : count(r.batch_size), true],
      ["latency", r => ms(r.latency_ms), true], ["90 % interval", r => known(r.latency_high_ms) ? `${number(r.latency_low_ms)} to ${number(r.latency_high_ms)}` : UNKNOWN, true],
      ["GPU time", r => ms(r.gpu_ms), true], ["host time", r => ms(r.host_ms), true], ["samples/s", r => number(r.throughput_rps), true],
      ["memory", r => bytes(r.mreq_bytes), true], ["of GPU", r => percent(r.mreq_pct), true], ["in range", r => percent(r.coverage_pct), true], ...text("times from", "source"),
    ].filter(([, cell]) => rows.some(r => cell(r) !== UNKNOWN)), rows);
  }
  show();
};
