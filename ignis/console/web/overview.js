// All queues: totals, what needs somebody, and a row a queue that stays where it is while its figures change.

import { call, pageOf } from "./api.js";
import { spark } from "./charts.js";
import { h, refill } from "./dom.js";
import { age, number, rate } from "./format.js";
import { figure, nothing, scope, stamp, tag } from "./parts.js";

const RISING_S = 20;
const sum = (rows, name) => rows.reduce((all, one) => all + (one[name] ?? 0), 0);

// Of each column: its head, what it is sorted by, and what stands in it.
const COLUMNS = [
  ["queue", (one) => one.queue, null, ""],
  ["pending", (one) => one.pending, number, "num"],
  ["in flight", (one) => one.in_flight, number, "num"],
  ["sideline", (one) => one.sideline, number, "num"],
  ["delayed", (one) => one.delayed, number, "num"],
  ["oldest", (one) => one.oldest_age_s, age, "num"],
  ["latency", (one) => one.latency_s, age, "num"],
  ["in", (one) => one.published_rate, rate, "num"],
  ["out", (one) => one.finished_rate, rate, "num"],
];

// How the table is sorted and filtered: kept while other pages are looked at.
const view = { by: "problems", down: true, name: "", only: false };

// Whether the oldest message has grown older at every look for so long: what comes first is not handled.
function rising(points) {
  let at = points.length - 1;
  while (at > 0 && points[at - 1][6] !== null && points[at - 1][6] < points[at][6]) at -= 1;
  return at >= 0 && points.at(-1)[0] - points[at][0] >= RISING_S;
}

function problemsOf(one, points) {
  const found = [];
  if (one.sideline) found.push(["failed", "bad", 4]);
  if (rising(points)) found.push(["oldest rising", "warn", 2]);
  if (one.paused) found.push(["paused", "warn", 1]);
  return found;
}

function row(name) {
  const tags = h("span", { class: "tags" });
  const cells = COLUMNS.slice(1).map(([text, , , kind]) => h("td", { class: kind, "data-label": text }));
  const course = h("td", { class: "course" });
  const element = h("tr", {}, h("td", { class: "name" }, h("a", { href: pageOf(name) }, name), tags), cells, course);
  return {
    element,
    update(one, problems, points) {
      cells.forEach((cell, place) => {
        const [, value, said] = COLUMNS[place + 1];
        const text = said(value(one));
        if (cell.textContent !== text) cell.textContent = text;
      });
      cells[2].classList.toggle("bad", one.sideline > 0);
      const state = one.settings.state;
      refill(tags, [problems, state], () => [
        ...problems.map(([text, kind]) => tag(text, kind)), state !== "active" && state !== "paused" ? tag(state) : null,
      ]);
      element.className = problems.length ? problems[0][1] : "";
      course.replaceChildren(spark(points, 1));
    },
  };
}

const command = (text) => h("pre", { tabindex: "0" }, text);

const empty = (store) => h("div", { class: "card narrow-text" },
  h("h2", {}, "There is no queue that you may look at."),
  h("p", {}, "If none was made yet, make one and publish a message to it. Type in a terminal:"),
  command(`ignis queue create orders --url '${store}'\necho '{"id": 1}' | ignis publish orders --url '${store}'`),
  h("p", {}, "Or open it in an application, which makes it as well:"),
  command(`import ignis\n\napp = ignis.Ignis("${store}")\napp.queue("orders", dict).publish({"id": 1})`),
  h("p", { class: "dim" }, "It appears here by itself. If there are queues, ask for the right to look at them."));

export async function overview(main) {
  const totals = h("dl", { class: "tiles" });
  const rows = new Map();
  const body = h("tbody");
  const shown = h("span", { class: "dim", role: "status" });
  const said = h("p", { class: "dim foot" });
  let found = { queues: [], history: {}, store: "" };

  const heads = COLUMNS.map(([text, , , kind]) => h("th", { scope: "col", class: kind },
    h("button", { class: "sort", onclick: () => sort(text, view.by === text ? !view.down : text !== "queue") }, text)));
  const sorter = h("select", { onchange: () => sort(sorter.value, !["queue"].includes(sorter.value)) },
    ["problems", ...COLUMNS.map(([text]) => text)].map((text) => h("option", { value: text }, text === "problems" ? "problems first" : text)));
  const name = h("input", { type: "search", value: view.name, autocomplete: "off", spellcheck: "false", oninput: () => { view.name = name.value; fill(); } });
  const only = h("button", { "aria-pressed": "false", onclick: () => { view.only = !view.only; fill(); } });
  const list = h("div", { class: "stacked" },
    h("div", { class: "row tools" },
      h("label", { class: "grow" }, "Filter by name", name),
      h("label", {}, "Sort by", sorter),
      only, shown),
    h("div", { class: "card flush" }, h("table", { "aria-label": "Queues", class: "stack queues" },
      h("thead", {}, h("tr", {}, heads, h("th", { scope: "col" }, "pending so far"))), body)));
  const none = h("div");
  main.replaceChildren(h("div", { class: "heading" }, h("h1", {}, "Queues"), scope("fleet")), totals, list, none, said);

  function sort(by, down) {
    Object.assign(view, { by, down });
    fill();
  }

  function fill() {
    const all = found.queues.map((one) => ({ one, problems: problemsOf(one, found.history[one.queue]) }));
    const wanted = view.name.trim().toLowerCase();
    const some = all.filter(({ one, problems }) => one.queue.toLowerCase().includes(wanted) && (!view.only || problems.length));
    const value = COLUMNS.find(([text]) => text === view.by)?.[1];
    const weight = ({ problems }) => problems.reduce((most, [, , one]) => most + one, 0);
    some.sort((a, b) => {
      const [x, y] = value ? [value(a.one) ?? -1, value(b.one) ?? -1] : [weight(a), weight(b)];
      const order = x === y ? 0 : (x < y ? -1 : 1) * (view.down ? -1 : 1);
      return order || (a.one.queue < b.one.queue ? -1 : 1);
    });
    for (const gone of [...rows.keys()].filter((one) => !some.some((each) => each.one.queue === one))) rows.delete(gone);
    for (const { one, problems } of some) {
      if (!rows.has(one.queue)) rows.set(one.queue, row(one.queue));
      rows.get(one.queue).update(one, problems, found.history[one.queue]);
    }
    const elements = some.map(({ one }) => rows.get(one.queue).element);
    if (elements.length !== body.children.length || elements.some((one, place) => body.children[place] !== one)) {
      const held = document.activeElement;
      body.replaceChildren(...elements);
      if (body.contains(held)) held.focus({ preventScroll: true });
    }
    const shownRows = some.map(({ one }) => one);
    refill(totals, shownRows.map((one) => [one.pending, one.in_flight, one.sideline, one.delayed, one.published_rate, one.finished_rate]), () => [
      figure("pending", number(sum(shownRows, "pending"))), figure("in flight", number(sum(shownRows, "in_flight"))),
      figure("sideline", number(sum(shownRows, "sideline")), sum(shownRows, "sideline") ? "bad" : ""), figure("delayed", number(sum(shownRows, "delayed"))),
      figure("in", rate(sum(shownRows, "published_rate"))), figure("out", rate(sum(shownRows, "finished_rate"))),
    ]);
    COLUMNS.forEach(([text], place) => {
      if (text === view.by) heads[place].setAttribute("aria-sort", view.down ? "descending" : "ascending");
      else heads[place].removeAttribute("aria-sort");
    });
    sorter.value = view.by;
    const troubled = all.filter(({ problems }) => problems.length).length;
    only.textContent = `${number(troubled)} with problems`;
    only.setAttribute("aria-pressed", String(view.only));
    only.hidden = !troubled && !view.only;
    const told = some.length === all.length ? `${number(all.length)} queues` : `${number(some.length)} of ${number(all.length)} queues`;
    if (shown.textContent !== told) shown.textContent = told;
    list.hidden = totals.hidden = !all.length;
    refill(none, [all.length, some.length, found.store], () => (!all.length ? empty(found.store) : !some.length ? nothing("No queue is like that.") : []));
    said.replaceChildren("As of ", stamp(found.at_s * 1000), `. Store: ${found.store}`);
  }

  const again = async () => {
    found = await call("GET", "/overview");
    fill();
  };
  await again();
  return again;
}
