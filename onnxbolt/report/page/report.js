"use strict";
// Draws what Python laid out. Texts of a model reach the page by textContent alone.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const ROWS = 200; // rows of a table that are drawn at a time
  const MARGIN = 400; // pixels around the visible part that are drawn, too
  const READABLE = 0.45; // zoom below which blocks have no text
  const LEAST_FIT = 0.65; // a wide drawing is scrolled rather than made smaller
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);

  function element(name, attributes = {}, text = null, parent = null) {
    const made = document.createElement(name);
    return finished(made, attributes, text, parent);
  }

  function drawn(name, attributes = {}, text = null, parent = null) {
    return finished(document.createElementNS(SVG, name), attributes, text, parent);
  }

  function finished(made, attributes, text, parent) {
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }

  // --- tabs ---------------------------------------------------------------------------------------

  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const opened = new Set();

  function open(name) {
    for (const tab of tabs) {
      const chosen = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      byId(tab.getAttribute("aria-controls")).hidden = !chosen;
    }
    fill(name);
  }

  // A part is filled when it is first opened, and all of them before printing.
  function fill(name) {
    if (opened.has(name)) return;
    opened.add(name);
    for (const place of byId(name).querySelectorAll("[data-table]")) new Table(place);
    if (name === "model") model.start();
  }

  document.querySelector('[role="tablist"]').addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = tabs.indexOf(document.activeElement);
    const next = event.key === "Home" ? 0 : event.key === "End" ? tabs.length - 1 : step && (at + step + tabs.length) % tabs.length;
    if (next === undefined) return;
    event.preventDefault();
    tabs[next].focus();
    open(tabs[next].getAttribute("aria-controls"));
  });
  for (const tab of tabs) {
    const name = tab.getAttribute("aria-controls");
    byId(name).dataset.title = tab.firstChild.textContent;
    tab.addEventListener("click", () => open(name));
  }

  // --- tables -------------------------------------------------------------------------------------

  const shownText = (cell) => (Array.isArray(cell) ? cell[1] : cell);
  const sortValue = (cell) => (Array.isArray(cell) ? cell[0] : cell);

  class Table {
    constructor(place) {
      this.table = data.tables[place.dataset.table];
      if (!this.table) return;
      this.order = this.table.rows.map((_, row) => row);
      this.texts = null;
      this.sorted = -1;
      this.count = ROWS;
      const above = element("div", { class: "above" }, null, place);
      if (this.table.rows.length > 12) {
        this.filter = element("input", { type: "search", placeholder: "Filter rows", "aria-label": `Filter ${this.table.title}` }, null, above);
        this.filter.addEventListener("input", () => this.draw());
      }
      this.shown = element("span", { class: "shown", role: "status" }, null, above);
      const frame = element("div", { class: "rows", tabindex: "0", role: "region", "aria-label": this.table.title }, null, place);
      const table = element("table", {}, null, frame);
      const head = element("tr", {}, null, element("thead", {}, null, table));
      this.heads = this.table.columns.map(([title, kind], column) => {
        const cell = element("th", { scope: "col", class: kind === "number" ? "number" : "" }, null, head);
        element("button", { type: "button" }, title, cell).addEventListener("click", () => this.sort(column));
        return cell;
      });
      this.body = element("tbody", {}, null, table);
      this.more = element("button", { type: "button", class: "more" }, `Show ${ROWS} more`, place);
      this.more.addEventListener("click", () => {
        this.count += ROWS;
        this.draw();
      });
      this.draw();
    }

    // The first click on a column of numbers brings the largest up.
    sort(column) {
      const numbers = this.table.columns[column][1] === "number";
      this.down = this.sorted === column ? !this.down : numbers;
      this.sorted = column;
      const sign = this.down ? -1 : 1;
      const rows = this.table.rows;
      const values = rows.map((row) => sortValue(row[column]));
      this.order.sort((a, b) => {
        const less = numbers ? values[a] - values[b] : values[a] < values[b] ? -1 : values[a] > values[b] ? 1 : 0;
        return sign * less || a - b;
      });
      this.heads.forEach((head, at) => {
        if (at === column) head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
        head.firstChild.textContent = this.table.columns[at][0] + (at === column ? (this.down ? " ↓" : " ↑") : "");
      });
      this.draw();
    }

    draw() {
      const wanted = this.filter ? this.filter.value.trim().toLowerCase() : "";
      if (wanted && !this.texts) this.texts = this.table.rows.map((row) => row.map(shownText).join("\n").toLowerCase());
      const found = wanted ? this.order.filter((row) => this.texts[row].includes(wanted)) : this.order;
      const lines = found.slice(0, this.count).map((row) => this.line(row));
      this.body.replaceChildren(...lines);
      this.more.hidden = found.length <= this.count;
      this.shown.textContent = this.filter ? `${lines.length} of ${found.length} rows` : "";
    }

    line(row) {
      const line = element("tr");
      this.table.rows[row].forEach((cell, column) => {
        const kind = column === 0 ? "name" : this.table.columns[column][1];
        const made = element("td", { class: kind }, column === 0 ? null : shownText(cell), line);
        if (column > 0) return;
        const place = this.table.places[row];
        const leads = place !== undefined && place !== null;
        const parent = leads ? element("button", { type: "button", class: "link" }, null, made) : made;
        element("span", { class: "clamp", title: shownText(cell) }, shownText(cell), parent);
        if (leads)
          parent.addEventListener("click", () => {
            open("model");
            model.show(this.table.side, place);
          });
      });
      return line;
    }
  }

  // --- the drawing of one model -------------------------------------------------------------------

  class Pane {
    constructor(side, figure) {
      this.side = side;
      this.graph = data.graphs[side];
      this.canvas = figure.querySelector(".canvas");
      this.svg = drawn("svg", { role: "presentation" }, null, this.canvas);
      this.equal = new Map(this.graph.alike.flatMap((places) => places.map((place) => [place, places])));
      this.standIns = new Map(this.graph.stand_ins);
      this.zoom = 1;
      this.matches = new Set();
      this.related = new Set();
      this.chosen = -1;
      this.waiting = false;
      this.longest = Math.max(1e-9, ...this.graph.blocks.map((block) => block.time || 0));
      this.canvas.addEventListener("scroll", () => this.later());
      this.canvas.addEventListener("keydown", (event) => this.key(event));
      this.canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey) return;
        event.preventDefault();
        model.scale(model.zoom * (event.deltaY < 0 ? 1.15 : 1 / 1.15));
      }, { passive: false });
      new ResizeObserver(() => this.later()).observe(this.canvas);
    }

    fold(folded) {
      this.view = (folded && this.graph.views.folded) || this.graph.views.all;
      this.folded = this.view === this.graph.views.folded;
      this.corners = new Map(this.view.blocks.map(([place, x, y]) => [place, [x, y]]));
      this.svg.replaceChildren();
      drawn("path", { class: "edges", d: this.view.path }, null, this.svg);
      for (const [x, y, width, height, title] of this.view.frames) {
        const frame = drawn("g", { class: "frame" }, null, this.svg);
        drawn("rect", { x, y, width, height, rx: 8 }, null, frame);
        drawn("text", { x: x + width + 6, y: y + 14 }, title, frame);
      }
      this.blocks = drawn("g", {}, null, this.svg);
      this.made = new Map();
      this.scale(this.zoom);
    }

    // The block that is drawn for this one: itself, its like in the first of several equal layers,
    // or one that reads it.
    first(place) {
      if (!this.folded) return place;
      const shown = this.standIns.get(place) ?? place;
      return (this.equal.get(shown) || [shown])[0];
    }

    // The blocks of equal layers that are equal to this one.
    alike(place) {
      return this.equal.get(place) || [place];
    }

    scale(zoom) {
      const middle = this.view.height ? (this.canvas.scrollTop + this.canvas.clientHeight / 2) / (this.view.height * this.zoom) : 0;
      this.zoom = zoom;
      this.svg.setAttribute("viewBox", `0 0 ${this.view.width} ${this.view.height}`);
      this.svg.setAttribute("width", this.view.width * zoom);
      this.svg.setAttribute("height", this.view.height * zoom);
      this.canvas.scrollTop = middle * this.view.height * zoom - this.canvas.clientHeight / 2;
      this.clear();
      this.draw();
    }

    // Shows the top, at the first block that has to do with the other model.
    home() {
      const blocks = this.view.blocks;
      const ours = ([at]) => ["fused", "taken"].includes(this.graph.blocks[at].kind);
      const [place] = blocks.find(ours) || blocks[0] || [-1];
      if (place < 0) return;
      this.reveal(place);
      this.canvas.scrollTop = 0;
      this.draw();
    }

    fitting() {
      return Math.min(1, (this.canvas.clientWidth - 16) / this.view.width);
    }

    clear() {
      this.blocks.replaceChildren();
      this.made.clear();
    }

    later() {
      if (this.waiting || !this.view) return;
      this.waiting = true;
      requestAnimationFrame(() => {
        this.waiting = false;
        this.draw();
      });
    }

    // Draws the blocks that are visible, and takes away those that are not.
    draw(all = false) {
      const top = this.canvas.scrollTop / this.zoom - MARGIN;
      const bottom = top + this.canvas.clientHeight / this.zoom + 2 * MARGIN;
      for (const [place, x, y] of this.view.blocks) {
        const visible = all || (y + data.size[1] > top && y < bottom);
        if (visible && !this.made.has(place)) this.made.set(place, this.block(place, x, y, all));
        else if (!visible && this.made.has(place)) {
          this.made.get(place).remove();
          this.made.delete(place);
        }
      }
      this.mark();
    }

    block(place, x, y, all) {
      const [width, height] = data.size;
      const block = this.graph.blocks[place];
      const made = drawn("g", { class: `block ${block.kind}`, role: "img", "aria-label": `${block.op} ${block.name}`, id: `${this.side}-${place}`, transform: `translate(${x} ${y})` }, null, this.blocks);
      drawn("rect", { width, height, rx: 6 }, null, made);
      if (block.time) drawn("path", { class: "time", d: `M6 ${height - 2.5}h${((width - 12) * block.time) / this.longest}` }, null, made);
      if (this.zoom >= READABLE || all) {
        drawn("text", { x: 10, y: 18 }, shortened(block.label, 21, false), made);
        drawn("text", { x: 10, y: 34, class: "sub" }, shortened(block.shape, 24, true), made);
      }
      drawn("title", {}, `${block.op}\n${block.name}`, made);
      made.addEventListener("click", () => model.choose(this.side, place));
      return made;
    }

    mark() {
      for (const [place, made] of this.made) {
        made.classList.toggle("match", this.matches.has(place));
        made.classList.toggle("related", this.related.has(place));
        made.classList.toggle("chosen", place === this.chosen);
      }
      if (this.chosen >= 0) this.canvas.setAttribute("aria-activedescendant", `${this.side}-${this.chosen}`);
      else this.canvas.removeAttribute("aria-activedescendant");
    }

    reveal(place) {
      const [x, y] = this.corners.get(this.first(place)) || [0, 0]; // nobody reads it
      const [width, height] = data.size;
      const offset = Math.max(0, (this.canvas.clientWidth - this.view.width * this.zoom) / 2);
      this.canvas.scrollTo(
        offset + (x + width / 2) * this.zoom - this.canvas.clientWidth / 2,
        (y + height / 2) * this.zoom - this.canvas.clientHeight / 2,
      );
      this.draw();
    }

    key(event) {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const step = { ArrowDown: 1, ArrowUp: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) {
        event.preventDefault();
        model.choose(this.side, this.neighbour(event.key, step), true);
      } else if (event.key === "+" || event.key === "=") model.scale(model.zoom * 1.25);
      else if (event.key === "-") model.scale(model.zoom / 1.25);
      else if (event.key === "0") model.scale(1);
      else if (event.key === "f" || event.key === "F") model.fit();
    }

    // Up and down: along the edges. Left and right: among the blocks of one rank.
    neighbour(key, step) {
      if (this.chosen < 0) return this.view.blocks[0][0];
      const [x, y] = this.corners.get(this.chosen);
      if (key === "ArrowLeft" || key === "ArrowRight") {
        const rank = this.view.blocks.filter(([, , other]) => other === y).sort((a, b) => a[1] - b[1]);
        const at = rank.findIndex(([place]) => place === this.chosen) + step;
        return rank[Math.max(0, Math.min(rank.length - 1, at))][0];
      }
      let best = this.chosen;
      let least = Infinity;
      for (const [place, otherX, otherY] of this.view.blocks) {
        const away = step * (otherY - y);
        if (away <= 0) continue;
        const joined = step > 0 ? this.reads(place).includes(this.chosen) : this.reads(this.chosen).includes(place);
        const distance = away * 4 + Math.abs(otherX - x) - (joined ? 1e6 : 0);
        if (distance < least) [best, least] = [place, distance];
      }
      return best;
    }

    reads(place) {
      return this.graph.blocks[place].reads.map((maker) => this.first(maker));
    }
  }

  function shortened(text, most, start) {
    if (text.length <= most) return text;
    return start ? `${text.slice(0, most - 1)}…` : `${text.slice(0, most - 8)}…${text.slice(-7)}`;
  }

  // --- both models --------------------------------------------------------------------------------

  const model = {
    zoom: 1,
    panes: {},
    hits: [],
    hit: -1,

    start() {
      this.root = document.querySelector(".model");
      for (const figure of document.querySelectorAll("[data-pane]")) {
        this.panes[figure.dataset.pane] = new Pane(figure.dataset.pane, figure);
      }
      byId("in").addEventListener("click", () => this.scale(this.zoom * 1.25));
      byId("out").addEventListener("click", () => this.scale(this.zoom / 1.25));
      byId("zoom").addEventListener("click", () => this.scale(1));
      byId("fit").addEventListener("click", () => this.fit());
      byId("folded").addEventListener("change", () => this.fold());
      byId("search").addEventListener("input", () => this.search());
      byId("search").addEventListener("keydown", (event) => {
        if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
      });
      byId("next").addEventListener("click", () => this.step(1));
      byId("previous").addEventListener("click", () => this.step(-1));
      for (const button of document.querySelectorAll("[data-side]")) {
        button.addEventListener("click", () => this.sides(button.dataset.side));
      }
      if (!Object.values(this.panes).some((pane) => pane.graph.views.folded)) byId("folded").parentElement.hidden = true;
      if (window.matchMedia("(max-width: 1000px)").matches) this.sides("after");
      for (const pane of Object.values(this.panes)) pane.fold(true);
      this.fit();
    },

    sides(side) {
      this.root.dataset.shown = side;
      for (const button of document.querySelectorAll("[data-side]")) button.setAttribute("aria-pressed", button.dataset.side === side);
    },

    shown() {
      return Object.values(this.panes).filter((pane) => pane.canvas.clientWidth > 0);
    },

    fit() {
      const zooms = this.shown().map((pane) => pane.fitting());
      this.scale(Math.max(LEAST_FIT, Math.min(1, ...zooms)));
      for (const pane of this.shown()) pane.home();
    },

    scale(zoom) {
      this.zoom = Math.max(0.05, Math.min(3, zoom));
      for (const pane of Object.values(this.panes)) pane.scale(this.zoom);
      byId("zoom").textContent = `${Math.round(100 * this.zoom)}%`;
    },

    fold() {
      for (const pane of Object.values(this.panes)) pane.fold(byId("folded").checked);
      this.search();
      if (this.side) this.choose(this.side, this.place, true);
    },

    search() {
      const wanted = byId("search").value.trim().toLowerCase();
      this.hits = [];
      for (const pane of Object.values(this.panes)) {
        pane.matches.clear();
        if (!wanted) continue;
        pane.graph.blocks.forEach((block, place) => {
          if (!`${block.name}\n${block.op}\n${block.label}`.toLowerCase().includes(wanted)) return;
          this.hits.push([pane.side, place]);
          pane.matches.add(pane.first(place));
        });
      }
      this.hit = -1;
      for (const pane of Object.values(this.panes)) pane.mark();
      byId("found").textContent = wanted ? `${this.hits.length} found` : "";
    },

    step(step) {
      const shown = new Set(this.shown().map((pane) => pane.side));
      const hits = this.hits.filter(([side]) => shown.has(side));
      if (!hits.length) return;
      this.hit = (this.hit + step + hits.length) % hits.length;
      this.choose(...hits[this.hit], true);
      byId("found").textContent = `${this.hit + 1} of ${hits.length}`;
    },

    show(side, place) {
      if (this.root.dataset.shown && this.root.dataset.shown !== "both") this.sides(side);
      this.choose(side, place, true);
      this.panes[side].canvas.focus({ preventScroll: true });
    },

    // Marks a block and those that belong to it, and tells what is known of it.
    choose(side, place, reveal = false) {
      [this.side, this.place] = [side, place];
      const pane = this.panes[side];
      const block = pane.graph.blocks[place];
      for (const other of Object.values(this.panes)) {
        other.chosen = other === pane ? pane.first(place) : -1;
        other.related = new Set();
      }
      if (block.link) {
        const [, otherSide, places] = block.link;
        const other = this.panes[otherSide];
        other.related = new Set(places.map((at) => other.first(at)));
        if (places.length && other.canvas.clientWidth) other.reveal(places[0]);
      }
      if (reveal) pane.reveal(place);
      for (const each of Object.values(this.panes)) each.mark();
      this.tell(pane, place, block);
    },

    tell(pane, place, block) {
      const details = byId("details");
      details.replaceChildren();
      element("h3", {}, block.op, details);
      element("p", { class: "name" }, block.name, details);
      const list = element("dl", {}, null, details);
      const fact = (title, text) => {
        element("dt", {}, title, list);
        return element("dd", { class: title === "Kernel" ? "kernel" : "" }, text, list);
      };
      fact("Output", block.shape);
      if (block.body) fact("Body", block.body);
      for (const [title, text] of block.facts) fact(title, typeof text === "number" ? data.texts[text] : text);
      if (block.link) this.links(fact(block.link[0], ""), block.link[1], block.link[2]);
      if (block.reads.length) this.links(fact("Reads", ""), pane.side, block.reads);
      const readers = pane.graph.blocks.flatMap((other, at) => (other.reads.includes(place) ? [at] : []));
      if (readers.length) this.links(fact("Read by", ""), pane.side, readers);
      const alike = pane.alike(place);
      if (alike.length > 1) this.links(fact(`The same in ${alike.length} equal layers`, ""), pane.side, alike);
      details.scrollTop = 0;
    },

    links(parent, side, places) {
      const list = element("ul", {}, null, parent);
      for (const at of places) {
        const block = this.panes[side].graph.blocks[at];
        const item = element("li", {}, null, list);
        element("button", { type: "button", class: "link" }, block.name || block.op, item).addEventListener("click", () => this.show(side, at));
      }
    },
  };

  // --- printing: every part, the drawings as a whole ----------------------------------------------

  window.addEventListener("beforeprint", () => {
    for (const tab of tabs) fill(tab.getAttribute("aria-controls"));
    for (const pane of Object.values(model.panes)) {
      pane.clear();
      pane.draw(true);
    }
  });
  window.addEventListener("afterprint", () => {
    for (const pane of Object.values(model.panes)) pane.draw();
  });

  fill("overview");
})();
