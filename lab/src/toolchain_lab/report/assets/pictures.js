"use strict";
// Charts of the rows that pass the filter. A table describes its charts, see `pictures` in content.py. Each kind has these keys:
//   bars    by, split, value, top   rows, or the sum of a column, for each value of a column
//   spread  of, split               the frequency of the values of a number
//   cloud   x, y, split, diagonal   two numbers of each row
//   lanes   lane, start, end, split a timeline

const COLOURS = ["#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#6cc5b0", "#9c6b4e", "#ff8ab7", "#97bbf5", "#8a8f98"];
const MEANING = { done: "#3ca951", same: "#8a8f98", same_instructions: "#6cc5b0", changed: "#4269d0", failed: "#d8433a", timeout: "#efb118", only_a: "#d8433a", empty_b: "#d8433a" };
const REST = "others";

Chart.defaults.animation = false;
Chart.defaults.maintainAspectRatio = false;
Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
Chart.defaults.plugins.legend.position = "bottom";
Chart.defaults.plugins.legend.labels.boxWidth = 12;
Chart.defaults.plugins.legend.labels.boxHeight = 12;

function themed() {
  const style = getComputedStyle(document.documentElement);
  Chart.defaults.color = style.getPropertyValue("--soft").trim();
  Chart.defaults.borderColor = style.getPropertyValue("--line").trim();
}

class Picture {
  constructor(told, table) {
    this.told = { ...told };
    this.table = table;
    this.canvas = element("canvas", { role: "img" });
    this.drawn = element("div", { class: "drawn" }, this.canvas);
    this.caption = element("figcaption", {}, told.title);
    this.figure = element("figure", { class: told.wide ? "picture wide" : "picture" }, this.caption, this.drawn);
    if (told.kind === "cloud") for (const axis of ["x", "y"]) this.caption.append(this.axis(axis));
    if (told.kind === "spread" && told.choose) this.caption.append(this.axis("of"));
  }

  axis(name) {
    const list = element("select", { "aria-label": `${this.told.title}: ${name}` });
    for (const { key, label, kind } of this.table.columns) {
      if (kind !== "text" && kind !== "choice") list.append(new Option(label, key, false, key === this.told[name]));
    }
    list.addEventListener("change", () => {
      this.told[name] = list.value;
      this.draw();
    });
    return element("small", {}, name === "of" ? "" : `${name} `, list);
  }

  draw() {
    const made = this[this.told.kind]();
    this.chart?.destroy();
    this.chart = undefined;
    this.figure.hidden = !made;
    if (!made) return;
    this.drawn.style.minHeight = made.height ? `${made.height}px` : "";
    this.canvas.setAttribute("aria-label", `${this.told.title}: ${made.said}`);
    this.chart = new Chart(this.canvas, made.config);
  }

  // Returns the values of the column that divides bars or points, most frequent first, and a function from row to value.
  parts() {
    const column = this.table.byKey.get(this.told.split);
    if (!column) return { names: [""], of: () => 0 };
    const counts = new Map();
    for (const at of this.table.order) counts.set(column.values[at], (counts.get(column.values[at]) ?? 0) + 1);
    const names = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([name]) => name ?? "");
    const rest = COLOURS.length - 1;
    if (names.length > rest + 1) names.splice(rest, Infinity, REST);
    const places = new Map(names.map((name, at) => [name, at]));
    return { names, of: (at) => places.get(column.values[at] ?? "") ?? rest };
  }

  // The colour of a value does not depend on the filter.
  colour(name, at) {
    if (name in MEANING) return MEANING[name];
    const column = this.table.byKey.get(this.told.split);
    if (column) {
      column.colours ??= new Map([...new Set(column.values)].map((value) => value ?? "").sort().map((value, place) => [value, COLOURS[place % COLOURS.length]]));
    }
    return column?.colours.get(name) ?? COLOURS[at % COLOURS.length];
  }

  bars() {
    const { by, value, top = 20 } = this.told, column = this.table.byKey.get(by), sum = this.table.byKey.get(value);
    if (!column || (value && !sum)) return null;
    const { names, of } = this.parts(), rows = new Map();
    for (const at of this.table.order) {
      const label = column.values[at];
      if (label === null || label === "") continue;
      if (!rows.has(label)) rows.set(label, new Float64Array(names.length));
      rows.get(label)[of(at)] += sum ? sum.values[at] ?? 0 : 1;
    }
    const total = (parts) => parts.reduce((a, b) => a + b, 0);
    let labels = [...rows.keys()];
    if (isText(column)) labels.sort((a, b) => total(rows.get(b)) - total(rows.get(a)) || (a < b ? -1 : 1));
    else labels.sort((a, b) => a - b);
    if (!labels.length) return null;
    const said = labels.slice(0, 6).map((label) => `${label} ${shown(total(rows.get(label)), sum?.kind ?? "number")}`).join(", ");
    if (labels.length > top) {
      const others = new Float64Array(names.length);
      for (const label of labels.slice(top)) rows.get(label).forEach((count, at) => (others[at] += count));
      const name = `${labels.length - top} ${REST}`;
      labels = [...labels.slice(0, top), name];
      rows.set(name, others);
    }
    const clickable = this.table.lists.has(by);
    return {
      said,
      height: Math.max(150, labels.length * 24 + (names.length > 1 ? 78 : 44)),
      config: {
        type: "bar",
        data: {
          labels: labels.map((label) => cut(String(label), innerWidth < 600 ? 22 : 46)),
          datasets: names.map((name, at) => ({ label: name, data: labels.map((label) => rows.get(label)[at]), backgroundColor: this.colour(name, at), maxBarThickness: 20 })),
        },
        options: {
          indexAxis: "y",
          onClick: (_, [hit]) => {
            if (clickable && hit && this.table.lists.get(by).querySelector(`option[value="${CSS.escape(labels[hit.index])}"]`)) this.table.choose(by, labels[hit.index]);
          },
          plugins: { legend: { display: names.length > 1 }, tooltip: { callbacks: { label: ({ dataset, raw }) => ` ${dataset.label} ${shown(raw, sum?.kind ?? "number")}` } } },
          scales: {
            x: { stacked: true, ticks: { maxTicksLimit: 6, ...(sum ? {} : { precision: 0 }), callback: (tick) => shown(tick, sum?.kind ?? "number") } },
            y: { stacked: true, grid: { display: false }, ticks: { autoSkip: false } },
          },
        },
      },
    };
  }

  spread() {
    const column = this.table.byKey.get(this.told.of);
    if (!column) return null;
    const { names, of } = this.parts(), { values, kind } = column, rows = this.table.order.filter((at) => values[at] !== null);
    if (!rows.length) return null;
    let least = Infinity, most = -Infinity;
    for (const at of rows) {
      least = Math.min(least, values[at]);
      most = Math.max(most, values[at]);
    }
    const whole = kind === "number" && most - least <= 30 && rows.every((at) => Number.isInteger(values[at]));
    const log = !whole && least > 0 && most / least > 50;
    const bins = whole ? most - least + 1 : 24, scale = log ? Math.log : (x) => x, back = log ? Math.exp : (x) => x;
    const low = scale(least), step = whole ? 1 : (scale(most) - low) / bins || 1;
    const counts = names.map(() => new Float64Array(bins));
    for (const at of rows) counts[of(at)][Math.min(bins - 1, Math.floor((scale(values[at]) - low) / step))]++;
    const edge = (at) => shown(rounded(back(low + at * step)), kind);
    const labels = Array.from({ length: bins }, (_, at) => (whole ? NUMBERS.format(least + at) : edge(at)));
    return {
      said: `${NUMBERS.format(rows.length)} rows from ${shown(rounded(least), kind)} to ${shown(rounded(most), kind)}`,
      config: {
        type: "bar",
        data: { labels, datasets: names.map((name, at) => ({ label: name, data: [...counts[at]], backgroundColor: this.colour(name, at), categoryPercentage: 1, barPercentage: 0.92 })) },
        options: {
          plugins: {
            legend: { display: names.length > 1 },
            tooltip: { callbacks: { title: ([{ dataIndex }]) => `${column.label} ${whole ? labels[dataIndex] : `${edge(dataIndex)} to ${edge(dataIndex + 1)}`}` } },
          },
          scales: { x: { stacked: true, grid: { display: false }, ticks: { maxRotation: 0, autoSkipPadding: 12 } }, y: { stacked: true, beginAtZero: true, ticks: { precision: 0, maxTicksLimit: 6 } } },
        },
      },
    };
  }

  cloud() {
    const [x, y] = [this.told.x, this.told.y].map((key) => this.table.byKey.get(key));
    if (!x || !y) return null;
    const { names, of } = this.parts(), points = names.map(() => new Map());
    let count = 0, most = 0;
    for (const at of this.table.order) {
      const [a, b] = [x.values[at], y.values[at]];
      if (a === null || b === null) continue;
      count++;
      most = Math.max(most, a, b);
      const key = `${a} ${b}`, found = points[of(at)].get(key);
      if (found) found.rows++;
      else points[of(at)].set(key, { x: a, y: b, rows: 1 });
    }
    if (!count) return null;
    const datasets = names.map((name, at) => {
      const data = [...points[at].values()];
      return { label: name, data, backgroundColor: `${this.colour(name, at)}b0`, pointRadius: data.map(({ rows }) => Math.min(12, 3 + Math.log2(rows))), pointHoverRadius: 9 };
    });
    if (this.told.diagonal && x.kind === y.kind) {
      datasets.push({ type: "line", label: "no change", data: [{ x: 0, y: 0 }, { x: most, y: most }], borderColor: Chart.defaults.color, borderWidth: 1, borderDash: [5, 5], pointRadius: 0 });
    }
    const axis = (column) => ({ title: { display: true, text: column.label }, ticks: { maxTicksLimit: 8, callback: (tick) => shown(rounded(tick), column.kind) } });
    return {
      said: `${NUMBERS.format(count)} rows, ${x.label} against ${y.label}`,
      height: 300,
      config: {
        type: "scatter",
        data: { datasets },
        options: {
          plugins: {
            legend: { display: names.length > 1 },
            tooltip: { callbacks: { label: ({ dataset, raw }) => ` ${dataset.label} ${x.label} ${shown(raw.x, x.kind)}, ${y.label} ${shown(raw.y, y.kind)}${raw.rows ? `: ${NUMBERS.format(raw.rows)}` : ""}` } },
          },
          scales: { x: axis(x), y: axis(y) },
        },
      },
    };
  }

  lanes() {
    const [lane, start, end] = [this.told.lane, this.told.start, this.told.end].map((key) => this.table.byKey.get(key));
    const label = this.table.byKey.get(this.told.label);
    if (!lane || !start || !end || !this.table.order.length) return null;
    const { names, of } = this.parts(), data = names.map(() => []), lanes = new Set();
    let last = 0;
    for (const at of this.table.order) {
      lanes.add(lane.values[at]);
      last = Math.max(last, end.values[at]);
      data[of(at)].push({ x: [start.values[at], end.values[at]], y: String(lane.values[at]), row: at });
    }
    const labels = [...lanes].sort((a, b) => a - b).map(String);
    return {
      said: `${NUMBERS.format(this.table.order.length)} steps in ${labels.length} lanes, ${duration(last)}`,
      height: Math.min(700, 92 + labels.length * Math.max(7, Math.min(38, 500 / labels.length))),
      config: {
        type: "bar",
        data: { labels, datasets: names.map((name, at) => ({ label: name, data: data[at], backgroundColor: this.colour(name, at), grouped: false, barPercentage: 0.94, categoryPercentage: 1, minBarLength: 1 })) },
        options: {
          indexAxis: "y",
          onClick: (_, [hit]) => hit && this.table.go(this.table.order.indexOf(data[hit.datasetIndex][hit.index].row), true),
          plugins: { tooltip: { callbacks: { title: ([{ raw }]) => cut(label?.values[raw.row] ?? "", 90), label: ({ dataset, raw }) => ` ${dataset.label} ${duration(raw.x[1] - raw.x[0])}, from ${duration(raw.x[0])}` } } },
          scales: { x: { min: 0, max: last, ticks: { maxTicksLimit: 8, callback: (tick) => duration(tick) } }, y: { title: { display: true, text: lane.label }, grid: { display: false }, ticks: { display: labels.length <= 16 } } },
        },
      },
    };
  }
}

// Long names differ at their ends, so the beginning is cut.
const cut = (text, most) => (text.length <= most ? text : `…${text.slice(1 - most)}`);
const rounded = (number) => Number(number.toPrecision(3));
