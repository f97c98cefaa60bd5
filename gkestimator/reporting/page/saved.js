// ---------------------------------------------------------------- a plan
views.plan = function () {
  const plan = doc.plan, totals = plan.totals;
  const asked = totals.goodput_rps + sum(plan.unserved.map(m => m.rate_rps));  // what is not promised is listed as not served
  const replicas = plan.gpus.flatMap(gpu => gpu.replicas.map(replica => ({ ...replica, gpu: gpu.id, type: gpu.type })));
  const used = plan.gpus.filter(gpu => gpu.replicas.length), types = distinct(used.map(g => g.type));
  const verdict = section(main, "Verdict", "Promised: what the replicas can serve within the objectives by their latencies. Expected: the same once batches fill, requests queue and neighbours slow each other, by formulas.");
  cardsOf(verdict, [
    ["Requests on time, promised", `${rate(totals.goodput_rps)} a second`, `of ${exact(asked)} asked`, totals.goodput_rps >= asked * 0.999 ? "good" : "bad"],
    ["Requests on time, expected", known(totals.expected_goodput_rps) ? `${rate(totals.expected_goodput_rps)} a second` : "not known", "by queueing theory; gkest simulate plays it through", known(totals.expected_goodput_rps) && totals.expected_goodput_rps < asked * 0.99 ? "bad" : ""],
    ["GPUs used", count(totals.gpus_used), types.map(type => `${count(used.filter(g => g.type === type).length)} × ${type}`).join(", ")],
    ["Cost", known(totals.cost_per_hour) ? `$${number(totals.cost_per_hour)} an hour` : "not known", "at the prices of the cluster file, else of the GPU files"],
  ]);
  if ((plan.models || []).length) {
    const part = section(main, "Models", "On time: expected of the requests that are asked for, by the same formulas. A model far below the others is starved, whatever the total says.");
    const share = m => known(m.expected_rps) ? 100 * m.expected_rps / m.rate_rps : null;
    table(part, "Models", [
      ["model", m => m.model, false], ["objective", m => exact(m.slo_ms) + " ms", true], ["asked a second", m => rate(m.rate_rps), true], ["promised a second", m => rate(m.goodput_rps), true],
      ["on time, expected", m => known(share(m)) ? make("span", { class: share(m) >= 99 ? "good" : "bad", textContent: percent(share(m)) }) : "not known", true],
    ], plan.models);
  }
  if (plan.unserved.length) {
    const part = section(main, "Not served");
    table(part, "Not served", [["model", u => u.model, false], ["requests a second", u => rate(u.rate_rps), true], ["why", u => u.reason, false]], plan.unserved);
  }
  if (!used.length) return;
  const MOST = 60;
  const gpus = section(main, "GPUs", used.length > MOST ? `The first ${MOST} of ${count(used.length)} GPUs are drawn.` : "");
  const names = distinct(replicas.map(r => r.model)), drawn = used.slice(0, MOST);
  // A replica that takes turns with others uses the SMs in its part of the cycle alone.
  const compute = r => known(r.creq_pct) && known(r.duty_cycle_ms) ? r.creq_pct * r.latency_ms / r.duty_cycle_ms : r.creq_pct;
  const bars = (value, title, caption) => chart(gpus, () => ({
    legend: { data: names }, grid: { left: narrow() ? 100 : 150 }, xAxis: { ...below(title), max: v => Math.max(100, Math.ceil(v.max / 10 - 1e-6) * 10) },
    yAxis: named(drawn.map(g => g.id), narrow() ? 90 : 140), tooltip: { formatter: p => `${drawn[p.dataIndex].id}\n${p.seriesName}: ${percent(p.value)}` },
    series: names.map((name, i) => ({ name, type: "bar", stack: "all", barMaxWidth: 22, itemStyle: { color: hue(i), borderColor: style("--paper"), borderWidth: 1, decal: i < HUES.length ? undefined : { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 4], rotation: i } }, data: drawn.map(gpu => {
      const mine = gpu.replicas.filter(r => r.model === name && known(value(r)));
      return mine.length ? sum(mine.map(value)) : null;
    }) })),
  }), `${title}: ${drawn.map(g => `${g.id} ${percent(sum(g.replicas.map(r => value(r) || 0)))}`).join(", ")}`, caption, { lanes: drawn.length });
  bars(compute, "compute, % of the GPU", `A bar is a GPU; its parts are the models on it and the share of its compute that they need (${plan.creq}, averaged over time). What is left to 100 % is free.`);
  bars(r => r.mreq_pct, "memory, % of the GPU", "The same for memory: weights, activations and what the runtime takes for itself.");

  const slack = section(main, "Slack");
  const rows = replicas.map(r => ({ ...r, wait: r.max_wait_ms || 0, high: known(r.latency_high_ms) ? r.latency_high_ms : r.latency_ms })).map(r => ({ ...r, slack: r.slo_ms - r.wait - r.high }));
  // One bar a model: its replica with the least to spare, in percent of the objective.
  const least = names.map(name => rows.filter(r => r.model === name).reduce((a, b) => b.slack / b.slo_ms < a.slack / a.slo_ms ? b : a)).slice(0, MOST);
  const parts = [["waits for its batch", r => r.wait], ["the batch, estimated", r => Math.min(r.latency_ms, r.high)], ["up to the interval's upper end", r => Math.max(0, r.high - r.latency_ms)], ["slack", r => Math.max(0, r.slack)]];
  chart(slack, () => ({
    legend: {}, grid: { left: narrow() ? 100 : 210 }, xAxis: { ...below("% of the objective"), max: v => Math.max(100, Math.ceil(v.max / 10 - 1e-6) * 10) }, yAxis: named(least.map(r => narrow() ? r.model : `${r.model}: ${exact(r.slo_ms)} ms`), narrow() ? 92 : 200),
    tooltip: { formatter: p => `${least[p.dataIndex].model}\n${p.seriesName}: ${ms(parts[p.seriesIndex][1](least[p.dataIndex]))}` },
    series: parts.map(([name, value], i) => ({ name, type: "bar", stack: "all", barMaxWidth: 22, itemStyle: { color: [hue(4), hue(0), hue(5), style("--line")][i] }, data: least.map(r => 100 * value(r) / r.slo_ms) })),
  }), `Slack by model: ${least.map(r => `${r.model} ${ms(r.slack)} of ${ms(r.slo_ms)}`).join(", ")}`,
    "A bar is a model's tightest replica; the whole axis to 100 % is the time that its objective allows (beside its name). Pale: the slack that is left for queueing. Without any, requests are late as soon as a second one waits.", { lanes: least.length });
  table(slack, "Slack", [
    ["model", r => r.model, false], ["GPU", r => r.gpu, false], ["batch", r => count(r.batch_size), true], ["share of SMs", r => percent(r.sm_share_pct), true],
    ["serves", r => rate(r.goodput_rps) + " /s", true], ["could serve", r => rate(r.throughput_rps) + " /s", true], ["waits at most", r => ms(r.max_wait_ms), true], ["batch takes", r => ms(r.latency_ms), true], ["objective", r => exact(r.slo_ms) + " ms", true],
    ["slack", r => make("span", { class: r.slack >= 0 ? "good" : "bad", textContent: ms(r.slack) }), true],
  ], rows);
};

// ---------------------------------------------------------------- a simulation
views.simulation = function () {
  const report = doc.report, totals = report.totals, models = report.models;
  const verdict = section(main, "Verdict", "Every request was played through: it arrives, waits for its batch and its turn, is served, and is on time or not.");
  cardsOf(verdict, [
    ["On time", onTime(totals.on_time_pct), "of the requests that arrived", totals.on_time_pct >= 99 ? "good" : "bad"],
    ["Requests on time", `${rate(totals.goodput_rps)} a second`, `the plan promised ${rate(totals.promised_goodput_rps)}`],
    ["Half answered within", ms(totals.latency_p50_ms), `99 of 100 within ${ms(totals.latency_p99_ms)}`],
    ["Turned away or given up", `${rate(totals.rejected_rps + totals.dropped_rps)} a second`, `${count(totals.gpus_used)} GPUs used`],
  ]);
  // With many models the eight that keep their objectives worst are drawn; the legend brings the others.
  const worst = [...models].sort((a, b) => (a.on_time_pct ?? 101) - (b.on_time_pct ?? 101)).slice(0, 8).map(m => m.model);
  const order = models.map(m => m.model), many = order.length > 8 ? " The eight models that keep their objectives worst are drawn; choose others in the legend." : "";
  const asked = models.filter(m => m.latency_quantiles_ms);
  if (!asked.length) return;
  const latency = section(main, "Latency");
  const title = m => known(m.slo_ms) ? `${m.model} (objective ${exact(m.slo_ms)} ms)` : m.model;
  const shortest = Math.min(...asked.flatMap(m => m.latency_quantiles_ms.map(v => Math.max(v, 1e-3))));
  chart(latency, () => ({
    legend: { data: asked.map(title), selected: Object.fromEntries(asked.map(m => [title(m), worst.includes(m.model)])) }, grid: { top: 60 },
    xAxis: { ...below("latency, ms (log scale)"), type: "log", min: 10 ** Math.floor(Math.log10(shortest)), axisLabel: { formatter: v => number(v, 1) } }, yAxis: { type: "value", name: "answered, %", max: 100, nameTextStyle: { align: "left", color: style("--soft") } },
    tooltip: { formatter: p => `${p.seriesName}\n${number(p.value[1])} % within ${ms(p.value[0])}` },
    series: asked.map(m => ({ name: title(m), type: "line", ...lineLook(order.indexOf(m.model)), symbolSize: 5, data: m.latency_quantiles_ms.map((v, q) => [Math.max(v, 1e-3), doc.quantiles[q]]),
      markLine: known(m.slo_ms) ? { symbol: "none", silent: true, lineStyle: { color: hue(order.indexOf(m.model)), type: "dashed" }, label: { show: false }, data: [{ xAxis: m.slo_ms }] } : undefined })),
  }), `Share of requests answered within a time: ${asked.map(m => `${m.model} half within ${ms(m.latency_p50_ms)}, 99 % within ${ms(m.latency_p99_ms)}`).join("; ")}`,
    `The share of a model's answered requests that took at most so long, waiting included. A model keeps its objective (dashed line of its colour) where its curve has come up to 100 % left of it.${many}`, { tall: true });

  const window = report.settings.window_s;
  const time = section(main, "Over time", `In windows of ${exact(window)} s.`);
  const pair = make("div", { class: "pair" });
  time.append(pair);
  const over = (value, unit, max) => () => ({
    legend: { data: report.timeline.map(t => t.model), selected: Object.fromEntries(order.map(name => [name, worst.includes(name)])) }, grid: { top: 64 },
    xAxis: { ...below("time, s"), max: report.settings.duration_s }, yAxis: { type: "value", name: unit, max, min: 0, nameTextStyle: { align: "left", color: style("--soft") } },
    tooltip: { trigger: "item", formatter: p => `${p.seriesName}\n${number(p.value[0])} s: ${unit} ${number(p.value[1])}` },
    series: report.timeline.map(t => ({ name: t.model, type: "line", ...lineLook(order.indexOf(t.model)), symbolSize: 4, data: t.arrived.map((n, i) => [(i + 0.5) * window, value(t, i)]) })),
  });
  chart(pair, over((t, i) => t.arrived[i] ? 100 * t.on_time[i] / t.arrived[i] : null, "on time, %", 100), "Share on time over time", `The share of the requests that arrived in a window and were answered on time.${many}`);
  chart(pair, over((t, i) => t.wait_mean_ms[i], "mean wait, ms"), "Mean wait over time", "The queue: how long requests that arrived in a window waited before a GPU began with them. A line that only climbs is a model that gets more than it can serve.");
  const all = section(main, "Models", "Where the time of a mean request goes: until its batch is full or has waited long enough, until the GPU is free, and on the GPU.");
  table(all, "Models", [
    ["model", m => m.model, false], ["asked", m => exact(m.asked_rps) + " /s", true], ["on time", m => onTime(m.on_time_pct), true], ["objective", m => known(m.slo_ms) ? exact(m.slo_ms) + " ms" : UNKNOWN, true], ["p50", m => ms(m.latency_p50_ms), true], ["p99", m => ms(m.latency_p99_ms), true],
    ["waits for batch", m => ms(m.router && m.router.mean_ms), true], ["queues", m => ms(m.queue && m.queue.mean_ms), true], ["on the GPU", m => ms(m.gpu && m.gpu.mean_ms), true], ["mean batch", m => number(m.batch_mean), true],
  ], models);
  const gpus = section(main, "GPUs", "Busy: some batch runs. Compute used: the share of its SMs, averaged over time. Memory planned: what its replicas need.");
  table(gpus, "GPUs", [["GPU", g => g.id, false], ["busy", g => percent(g.busy_pct), true], ["compute used", g => percent(g.cuti_pct), true], ["memory planned", g => percent(g.muti_pct), true]], report.gpus);
};

// ---------------------------------------------------------------- a comparison
views.comparison = function () {
  const policies = distinct(doc.rows.map(r => r.policy)), AXES = { rate_scale: "load, times the workload's", slo_scale: "objectives, times the workload's" };
  const several = name => distinct(doc.rows.map(r => r[name])).length > 1;
  const axis = Object.keys(AXES).find(several) || "rate_scale";
  const filters = ["workload", "cluster", "arrivals", "slo_scale"].filter(name => name !== axis && several(name));
  const chosen = Object.fromEntries(filters.map(name => [name, doc.rows[0][name]]));
  const controls = make("div", { class: "controls", hidden: !filters.length }), rest = make("div");
  main.append(controls, rest);
  const mean = list => list.length ? sum(list) / list.length : null;
  function show() {
    controls.replaceChildren();
    for (const name of filters) {
      const values = distinct(doc.rows.map(r => r[name]));
      choice(controls, { slo_scale: "Objectives ×" }[name] || name[0].toUpperCase() + name.slice(1), values, values.map(String), chosen[name], v => { chosen[name] = v; show(); });
    }
    clear(rest);
    const cells = doc.rows.filter(r => filters.every(name => r[name] === chosen[name])), rows = cells.filter(r => r.status === "ok");
    const of = (policy, field) => mean(rows.filter(r => r.policy === policy && known(r[field])).map(r => r[field]));
    const verdict = section(rest, "Verdict", `Means over the ${several(axis) ? "loads or objectives and the " : ""}seeds below. A cell is one policy at one of them, simulated; those that a policy refused or failed count in the last column alone, so that means of policies that differ there do not compare.`);
    table(verdict, "Means", [
      ["policy", p => p, false], ["cells", p => count(rows.filter(r => r.policy === p).length), true], ["requests on time", p => rate(of(p, "goodput_rps")) + " /s", true], ["on time", p => onTime(of(p, "on_time_pct")), true],
      ["p99", p => ms(of(p, "latency_p99_ms")), true], ["GPUs", p => number(of(p, "gpus_used")), true], ["cost", p => known(of(p, "cost_per_hour")) ? `$${number(of(p, "cost_per_hour"))} an hour` : UNKNOWN, true],
      ["refused or failed", p => count(cells.filter(r => r.policy === p && r.status !== "ok").length), true],
    ], policies);
    for (const [field, title, unit, caption] of [
      ["on_time_pct", "On time", "%", "The share of the requests that arrived and were answered within their objectives."],
      ["goodput_rps", "Requests on time", "a second", "Requests that were answered within their objectives, a second: what the placement is worth."],
      ["gpus_used", "GPUs used", "GPUs", "What it takes. Of two policies with as many requests on time the lower line is better."],
    ]) {
      const part = section(rest, title);
      const points = distinct(rows.map(r => r[axis])).sort((a, b) => a - b);
      chart(part, () => ({
        legend: { data: policies }, grid: { top: 60 }, xAxis: { type: "category", data: points.map(x => `× ${exact(x)}`), name: AXES[axis], nameLocation: "middle", nameGap: 30 },
        yAxis: { type: "value", name: unit, min: field === "on_time_pct" ? v => Math.max(0, Math.floor(v.min / 10) * 10) : 0, max: field === "on_time_pct" ? 100 : undefined, minInterval: field === "gpus_used" ? 1 : undefined, nameTextStyle: { align: "left", color: style("--soft") } },
        tooltip: { trigger: "item", formatter: p => `${p.seriesName}\n${p.name}: ${number(p.value, 4)} ${unit}` },
        series: policies.map((policy, i) => ({ name: policy, type: "line", ...lineLook(i), data: points.map(x => mean(rows.filter(r => r.policy === policy && r[axis] === x && known(r[field])).map(r => r[field]))) })),
      }), `${title} by ${AXES[axis]}`, caption);
    }
  }
  show();
};

// ---------------------------------------------------------------- what changed between two models or tables
views.changes = function () {
  const rows = doc.rows, over = rows.flatMap(r => r.over);
  const place = r => `${r.after.gpu}, batch ${r.after.batch_size === null ? "none" : count(r.after.batch_size)}` + (r.after.dims ? `, ${r.after.dims}` : "");
  const name = r => distinct(rows.map(x => x.after.model)).length > 1 ? `${r.after.model}, ${place(r)}` : place(r);
  const verdict = section(main, "Verdict", rows.length && rows[0].before.model !== rows[0].after.model ? `${rows[0].before.model} → ${rows[0].after.model}` : "");
  const range = field => { const all = rows.map(r => r[field].change_pct); return !all.length || !all.every(known) ? "not known everywhere" : distinct([Math.min(...all), Math.max(...all)].map(signed)).join(" to "); };
  cardsOf(verdict, [["Latency", range("latency_ms"), ""], ["Memory", range("memory_bytes"), ""], ["FLOPs", range("flops"), ""],
    ["Limits", over.length ? "passed" : "none passed", over.length ? over.length === 1 ? "once, see below" : `${over.length} times, see below` : "of those that were set", over.length ? "bad" : "good"]]);
  if (over.length) verdict.append(make("ul", { class: "bad" }, ...over.map(text => make("li", { textContent: text }))));
  const part = section(main, "Latency");
  const drawn = rows.filter(r => known(r.latency_ms.change_pct)).slice(0, 60);
  if (drawn.length) chart(part, () => ({
    grid: { left: narrow() ? 110 : 230, top: 20 }, xAxis: below("change of latency, %"), yAxis: named(drawn.map(name), narrow() ? 100 : 220),
    tooltip: { formatter: p => `${name(drawn[p.dataIndex])}\n${signed(drawn[p.dataIndex].latency_ms.change_pct)}` },
    series: [
      { type: "bar", barMaxWidth: 16, data: drawn.map(r => ({ value: r.latency_ms.change_pct, itemStyle: { color: hue(r.latency_ms.change_pct > 0 ? 1 : 0) } })) },
      { type: "custom", silent: true, encode: { x: [1, 2], y: 0 }, data: drawn.map((r, i) => [i, r.latency_ms.change_low_pct, r.latency_ms.change_high_pct]).filter(d => known(d[1]) && known(d[2])), renderItem: (params, api) => {
        const from = api.coord([api.value(1), api.value(0)]), to = api.coord([api.value(2), api.value(0)]), stroke = { stroke: style("--ink"), lineWidth: 1.5 };
        const line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: stroke });
        return { type: "group", children: [line(from[0], from[1], to[0], to[1]), line(from[0], from[1] - 4, from[0], from[1] + 4), line(to[0], to[1] - 4, to[0], to[1] + 4)] };
      } },
    ],
  }), `Change of latency: ${drawn.map(r => `${name(r)} ${signed(r.latency_ms.change_pct)}`).join(", ")}`,
    "How much longer (orange, to the right) or shorter (blue) one batch takes. Thin lines: the 90 % interval of the change, of the kernels that differ alone. Where it reaches across zero, the change may be none.", { lanes: drawn.length });
  const both = (figure, text) => `${text(figure.before)} → ${text(figure.after)}`;
  table(part, "Changes", [
    ["where", r => whole(name(r)), false], ["latency", r => both(r.latency_ms, ms), true], ["change", r => signed(r.latency_ms.change_pct), true],
    ["90 % interval", r => known(r.latency_ms.change_low_pct) && known(r.latency_ms.change_high_pct) ? `${signed(r.latency_ms.change_low_pct)} to ${signed(r.latency_ms.change_high_pct)}` : UNKNOWN, true],
    ["memory", r => both(r.memory_bytes, bytes), true], ["change", r => signed(r.memory_bytes.change_pct), true], ["FLOPs", r => signed(r.flops.change_pct), true], ["fits", r => r.no_longer_fits ? make("span", { class: "bad", textContent: "no longer" }) : "", false],
  ], rows);
  const kernels = section(main, "Kernels that came, went, or run more or less often"), listed = rows.filter(r => r.kernels && r.kernels.length);
  if (!listed.length) kernels.append(make("p", { class: "note", textContent: "None, or not known: saved tables hold no kernels." }));
  const body = make("div"), controls = make("div");
  kernels.append(controls, body);
  const show = row => {
    controls.replaceChildren();
    body.replaceChildren();
    choice(controls, "Of", listed, listed.map(name), row, show);
    table(body, "Kernels", [["kernel", k => k.name, false], ["shape", k => make("code", { textContent: k.shape }), false], ["launches", k => `${count(k.launches_before)} → ${count(k.launches_after)}`, true],
      ["before", k => time(k.before_us || 0), true], ["after", k => time(k.after_us || 0), true], ["change", k => (k.change_us > 0 ? "+" : "-") + time(Math.abs(k.change_us || 0)), true]], row.kernels.slice(0, 100));
  };
  if (listed.length) show(listed[0]);
  for (const [key, text] of [["only_before", "Only in the old one"], ["only_after", "Only in the new one"]]) {
    if (doc[key].length) table(section(main, text), text, [["model", r => r.model, false], ["GPU", r => r.gpu, false], ["batch", r => r.batch_size === null ? UNKNOWN : count(r.batch_size), true]], doc[key]);
  }
};
