"use strict";

async function unpacked() {
  const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (character) => character.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

(async () => {
  themed();
  const sections = document.getElementById("sections"), all = [];
  const told = await unpacked();
  sections.replaceChildren();
  for (const [at, { title, note, table: data }] of told.sections.entries()) {
    const table = new Table(data, title);
    table.name = `t${at}`;
    const pictures = data.pictures.map((one) => new Picture(one, table));
    const drawn = element("div", { class: "pictures" }, ...pictures.map(({ figure }) => figure));
    const section = element("section", { "aria-label": title }, element("h2", {}, title));
    if (note) section.append(element("p", { class: "note" }, note));
    section.append(drawn, table.root);
    sections.append(section);
    table.draw(); // the table only has a height after it was inserted
    let waiting = 0;
    const redraw = () => {
      waiting = 0;
      for (const picture of pictures) picture.draw();
      // Two narrow charts share a row, so an odd last one gets the whole row.
      const narrow = pictures.filter(({ figure, told }) => !figure.hidden && !told.wide);
      narrow.forEach(({ figure }, place) => figure.classList.toggle("last", place === narrow.length - 1 && place % 2 === 0));
    };
    // The charts are drawn after the rows, and only once if several keys are pressed in a row.
    table.onChange = () => {
      clearTimeout(waiting);
      waiting = setTimeout(redraw, 250);
    };
    all.push({ table, redraw });
  }
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  for (const { redraw, table } of all) {
    redraw();
    table.haystack();
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.altKey || event.metaKey || /^(INPUT|SELECT)$/.test(document.activeElement.tagName)) return;
    event.preventDefault();
    const here = all.find(({ table }) => table.root.contains(document.activeElement)) ?? all[0];
    here?.table.filter.focus();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    themed();
    for (const { redraw } of all) redraw();
  });
  addEventListener("resize", () => all.forEach(({ table }) => table.draw()));
  document.documentElement.dataset.ready = "yes";
})().catch((error) => {
  document.getElementById("sections").textContent = `This page cannot be shown: ${error.message}`;
});
