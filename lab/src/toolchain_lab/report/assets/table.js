"use strict";
// A table of any length, which only draws the visible rows. Data is only inserted as text nodes, never as HTML.

const ROW = 28, FEW = 20;
const NUMBERS = new Intl.NumberFormat("en-US", { maximumFractionDigits: 3 });
const GOOD = new Set(["done", "same", "same_instructions", "equal"]);
const BAD = new Set(["failed", "timeout", "only_a", "empty_b", "missing", "empty", "damaged", "absent", "uneven", "other bytes"]);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

function size(count) {
  for (const unit of ["B", "kB", "MB"]) {
    if (Math.abs(count) < 1000) return unit === "B" ? `${count} B` : `${count.toFixed(1)} ${unit}`;
    count /= 1000;
  }
  return `${count.toFixed(2)} GB`;
}

function shown(value, kind) {
  if (value === null || value === "") return "";
  if (kind === "seconds") return duration(value);
  if (kind === "bytes") return size(value);
  return kind === "number" ? NUMBERS.format(value) : value;
}

const isText = (column) => column.kind === "text" || column.kind === "choice";

class Table {
  constructor(data, title) {
    this.columns = data.columns;
    this.byKey = new Map(data.columns.map((column) => [column.key, column]));
    this.count = data.count;
    this.title = title;
    this.sorted = Int32Array.from({ length: data.count }, (_, at) => at); // all rows; `order` has those that pass the filter
    this.sortBy = this.byKey.has(data.sort) ? data.sort : "";
    this.descending = data.descending;
    this.active = 0; // an index in `order`
    this.held = []; // the pinned rows
    this.chosen = new Map(); // the required value of a column, by its key
    this.onChange = () => {};
    this.build();
    this.arrange();
    this.look();
  }

  build() {
    this.filter = element("input", { type: "search", placeholder: "Filter: words, or vgpr>128", "aria-label": `Filter ${this.title}`, spellcheck: "false" });
    this.said = element("output", { "aria-live": "polite" });
    this.lists = new Map();
    const tools = element("div", { class: "tools" }, this.filter);
    for (const column of this.columns.filter(({ kind }) => kind === "choice")) {
      const counts = new Map();
      for (const value of column.values) counts.set(value, (counts.get(value) ?? 0) + 1);
      if (counts.size < 2 || counts.size > 200) continue;
      const list = element("select", { "aria-label": column.label }, new Option(`${column.label}: all`, ""));
      for (const [value, count] of [...counts].sort((a, b) => b[1] - a[1])) {
        if (value) list.append(new Option(`${value} (${NUMBERS.format(count)})`, value));
      }
      list.addEventListener("change", () => this.choose(column.key, list.value));
      this.lists.set(column.key, list);
      tools.append(list);
    }
    tools.append(this.said);
    this.head = element("div", { class: "head", role: "row" });
    for (const column of this.columns) {
      const button = element("button", { type: "button", title: column.help || column.label }, element("span", {}, column.label), element("small", {}, column.key));
      button.addEventListener("click", () => this.sort(column));
      this.head.append(element("div", { role: "columnheader", class: isText(column) ? "left" : "right" }, button));
    }
    this.rows = element("div", { class: "rows", role: "rowgroup" });
    this.grid = element("div", { class: "grid", role: "grid", tabindex: "0", "aria-label": this.title, "aria-colcount": this.columns.length }, this.head, this.rows);
    this.against = element("div", { class: "against", "aria-live": "polite" });
    this.against.hidden = this.count <= FEW; // a short table shows all values; the comparison appears when the rows get the focus
    this.widths = this.columns.map(width).join(" ");
    this.head.style.gridTemplateColumns = this.widths;
    this.root = element("div", {}, tools, this.grid, this.against);
    this.filter.addEventListener("input", () => this.look());
    this.filter.addEventListener("keydown", (event) => this.inFilter(event));
    this.grid.addEventListener("keydown", (event) => this.inGrid(event));
    this.grid.addEventListener("focus", () => (this.against.hidden = false));
    this.grid.addEventListener("scroll", () => this.draw(), { passive: true });
    this.rows.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.go(Number(row.dataset.at), true);
    });
  }

  choose(key, value) {
    if (value) this.chosen.set(key, value);
    else this.chosen.delete(key);
    this.lists.get(key).value = value;
    this.look();
  }

  haystack() {
    const texts = this.columns.filter(isText);
    this.hay ??= Array.from({ length: this.count }, (_, at) => texts.map(({ values }) => values[at] ?? "").join("\n").toLowerCase());
    return this.hay;
  }

  look() {
    const { tests, odd } = this.tests();
    const kept = [];
    for (const at of this.sorted) if (tests.every((test) => test(at))) kept.push(at);
    this.order = kept;
    this.active = 0;
    this.grid.scrollTop = 0;
    this.said.className = odd.length ? "odd" : "";
    const all = `${NUMBERS.format(this.count)} ${this.count === 1 ? "row" : "rows"}`;
    const told = kept.length === this.count ? all : `${NUMBERS.format(kept.length)} of ${all}`;
    this.said.textContent = odd.length ? `there is no column ${odd.join(", ")}` : told;
    this.draw();
    this.onChange();
  }

  tests() {
    const tests = [], odd = [];
    for (const [key, wanted] of this.chosen) tests.push((at) => this.byKey.get(key).values[at] === wanted);
    for (const token of this.filter.value.toLowerCase().split(/\s+/).filter(Boolean)) {
      const [, key, sign, text] = /^([a-z_]+)(>=|<=|!=|=|>|<)(.*)$/.exec(token) ?? [];
      if (sign && this.byKey.has(key)) tests.push(condition(this.byKey.get(key), sign, text));
      else if (sign && /^[a-z_]+[<>]/.test(token)) odd.push(key);
      else {
        const hay = this.haystack(), not = token.length > 1 && token[0] === "-", word = not ? token.slice(1) : token;
        tests.push((at) => hay[at].includes(word) !== not);
      }
    }
    return { tests, odd };
  }

  sort(column) {
    this.descending = this.sortBy === column.key ? !this.descending : !isText(column);
    this.sortBy = column.key;
    this.arrange();
    this.look();
  }

  arrange() {
    this.columns.forEach((column, at) => {
      const cell = this.head.children[at];
      if (column.key === this.sortBy) cell.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    const column = this.byKey.get(this.sortBy);
    if (!column) return;
    const { values } = column, sign = this.descending ? -1 : 1;
    this.sorted.sort((a, b) => {
      const [x, y] = [values[a], values[b]];
      if (x === y) return a - b;
      if (x === null || x === "") return 1; // unknown values come last in both directions
      if (y === null || y === "") return -1;
      return x < y ? -sign : sign;
    });
  }

  draw() {
    const { order } = this;
    this.rows.style.height = `${order.length * ROW}px`;
    const header = this.head.offsetHeight || 40;
    this.grid.style.height = `${Math.max(order.length, 1) * ROW + header + 18}px`;
    const first = Math.max(0, Math.floor(this.grid.scrollTop / ROW) - 6);
    const last = Math.min(order.length, first + Math.ceil((this.grid.clientHeight || 620) / ROW) + 14);
    const drawn = [];
    for (let at = first; at < last; at++) drawn.push(this.row(at));
    this.rows.replaceChildren(...drawn);
    this.grid.setAttribute("aria-rowcount", order.length + 1);
    if (order.length) this.grid.setAttribute("aria-activedescendant", this.id(this.active));
    else this.grid.removeAttribute("aria-activedescendant");
    this.compare();
  }

  id(at) {
    return `${this.name ?? "table"}-row-${this.order[at]}`;
  }

  row(at) {
    const index = this.order[at], isHeld = this.held.includes(index);
    const row = element("div", { class: "row", role: "row", id: this.id(at), "aria-rowindex": at + 2, "aria-selected": isHeld });
    row.classList.toggle("held", isHeld);
    row.classList.toggle("active", at === this.active);
    row.dataset.at = at;
    row.style.top = `${at * ROW}px`;
    row.style.gridTemplateColumns = this.widths;
    for (const column of this.columns) {
      const value = column.values[index], text = shown(value, column.kind);
      const tone = GOOD.has(value) ? "good" : BAD.has(value) ? "bad" : "";
      const cell = element("div", { role: "gridcell", class: `cell ${isText(column) ? column.kind : "right"} ${tone}` }, text);
      if (column.kind === "text") cell.title = text;
      row.append(cell);
    }
    return row;
  }

  go(at, hold = false) {
    if (!this.order.length) return;
    this.active = Math.max(0, Math.min(this.order.length - 1, at));
    if (hold) {
      const row = this.order[this.active];
      this.held = this.held.includes(row) ? this.held.filter((one) => one !== row) : [...this.held.slice(-1), row];
    }
    const top = this.active * ROW, room = this.grid.clientHeight - this.head.offsetHeight - ROW;
    if (top < this.grid.scrollTop) this.grid.scrollTop = top;
    else if (top > this.grid.scrollTop + room - 4) this.grid.scrollTop = top - room + 4;
    this.draw();
  }

  inGrid(event) {
    if (event.target !== this.grid || event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.grid.clientHeight / ROW) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) this.go(this.active + steps[event.key]);
    else if (event.key === "Enter" || event.key === " ") this.go(this.active, true);
    else if (event.key === "Escape" && this.held.length) {
      this.held = [];
      this.draw();
    } else return;
    event.preventDefault();
  }

  inFilter(event) {
    if (event.key === "Escape") {
      event.preventDefault();
      if (!this.filter.value) this.grid.focus();
      this.filter.value = "";
      this.look();
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      this.grid.focus();
    }
  }

  compare() {
    const rows = [...this.held];
    const here = this.order[this.active];
    if (rows.length < 2 && here !== undefined && !rows.includes(here)) rows.push(here);
    const pairs = this.columns.some(({ before }) => this.byKey.has(before));
    const key = rows.join();
    if (key === this.compared) return;
    this.compared = key;
    if (!rows.length) {
      this.against.replaceChildren(element("p", {}, "No row passes the filter."));
      return;
    }
    if (rows.length === 1 && !pairs) {
      this.against.replaceChildren(element("h3", {}, "This row"), this.alone(rows[0]));
      return;
    }
    const sides = rows.length === 2;
    const headings = sides ? rows.map((row) => (this.held.includes(row) ? "pinned" : "this row")) : ["A", "B"];
    const body = element("tbody");
    for (const column of this.columns) {
      let values = rows.map((row) => [column, column.values[row]]);
      if (!sides) {
        const [row] = rows, after = this.columns.find(({ before }) => before === column.key);
        if (this.byKey.has(column.before)) continue; // shown in the row of side A
        if (after) values = [[column, column.values[row]], [after, after.values[row]]];
      }
      if (values.every(([, value]) => value === null || value === "")) continue;
      const other = values.length === 2 && values[0][1] !== values[1][1];
      const cells = values.map(([{ kind }, value], at) => {
        const text = shown(value, kind) || "–", change = at && other ? delta(values[0][1], value, kind) : "";
        return element("td", values.length === 1 ? { colspan: 2 } : {}, text + change);
      });
      const label = !sides && values.length === 2 ? column.label.replace(/ A$/, "") : column.label;
      body.append(element("tr", other ? { class: "other" } : {}, element("th", { scope: "row" }, label), ...cells));
    }
    const head = element("tr", {}, element("th"), ...headings.map((text) => element("th", { scope: "col" }, text)));
    const title = sides ? "Comparison of two rows" : "This row, A against B";
    this.against.replaceChildren(element("h3", {}, title), element("table", {}, element("thead", {}, head), body));
  }

  alone(row) {
    const list = element("dl");
    for (const column of this.columns) {
      const text = shown(column.values[row], column.kind);
      if (text) list.append(element("div", { class: column.kind }, element("dt", {}, column.label), element("dd", {}, text)));
    }
    return list;
  }
}

function delta(before, after, kind) {
  if (typeof before !== "number" || typeof after !== "number") return "";
  const change = after - before;
  return `  (${change > 0 ? "+" : "−"}${shown(Math.abs(change), kind)})`;
}

function condition({ values, kind }, sign, text) {
  const number = Number.parseFloat(text);
  const order = {
    ">": (value) => value > number, ">=": (value) => value >= number,
    "<": (value) => value < number, "<=": (value) => value <= number,
  };
  if (sign in order) return (at) => typeof values[at] === "number" && order[sign](values[at]);
  const isNumber = kind !== "text" && kind !== "choice";
  const equal = (value) => (isNumber ? value === number : (value ?? "").toLowerCase() === text);
  return (at) => equal(values[at]) === (sign === "=");
}

function width(column) {
  let most = Math.max(column.label.length + 2, column.key.length);
  for (const value of column.values) most = Math.max(most, isText(column) ? (value ?? "").length : shown(value, column.kind).length);
  return `${Math.ceil(Math.min(most, column.kind === "text" ? 110 : 34) * 7.7) + 22}px`;
}
