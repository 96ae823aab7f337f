// The lanes of the timeline, on the axis of its charts; marks that would overlap are one button.

import { LANES } from "./annotations.js";
import { EDGE_PX, GUTTER_PX } from "./charts.js";
import { clock, el } from "./dom.js";

const WIDE_PX = 48; // a mark with its counts

export class EventTracks {
  constructor(onOpen, lanes = LANES) {
    this.onOpen = onOpen;
    this.made = new Map(); // the button of each visible mark
    this.order = [];
    this.current = null;
    this.tracks = new Map(lanes.map((name) => [name, el("div", { className: "track", role: "group", "aria-label": name })]));
    this.place = el("div", { className: "tracks", onkeydown: (event) => this.press(event) }, lanes.map((name) => el("div", { className: "lane" }, el("span", { className: "faint" }, name), this.tracks.get(name))));
    this.place.style.setProperty("--gutter", `${GUTTER_PX}px`);
    this.place.style.setProperty("--edge", `${EDGE_PX}px`);
  }

  // Buttons stay in the page while they move: focus stays, too.
  draw(events, [from, until]) {
    const width = this.place.clientWidth - GUTTER_PX - EDGE_PX;
    if (width <= 0 || until <= from) return;
    const grain = 2 ** (Math.ceil(2 * Math.log2(((until - from) * WIDE_PX) / width)) / 2); // stable under small changes of the width
    const marks = new Map();
    const begun = new Map(); // when the last mark of each lane began
    for (const event of events) {
      if (!(event.at < begun.get(event.lane) + grain)) begun.set(event.lane, event.at);
      if (event.at < from || event.at > until) continue;
      const key = `${event.lane} ${grain} ${begun.get(event.lane)}`;
      if (!marks.has(key)) marks.set(key, []);
      marks.get(key).push(event);
    }
    for (const [key, { button }] of this.made) {
      if (marks.has(key)) continue;
      button.remove();
      this.made.delete(key);
    }
    for (const [key, members] of marks) this.show(key, members, (members[0].at - from) / (until - from));
    this.order = [...marks.keys()];
    if (!marks.has(this.current)) this.current = this.order[this.order.length - 1] ?? null;
    for (const [key, { button }] of this.made) button.tabIndex = key === this.current ? 0 : -1;
  }

  show(key, members, share) {
    if (!this.made.has(key)) {
      const button = el("button", { className: "mark", type: "button", onclick: () => this.open(key), onfocus: () => { this.current = key; } });
      this.tracks.get(members[0].lane).append(button);
      this.made.set(key, { button });
    }
    const mark = this.made.get(key);
    mark.members = members;
    const { button } = mark;
    const last = members[members.length - 1];
    button.style.left = `${100 * share}%`;
    const state = `${members.length} ${members.map(({ glyph }) => glyph).join("")} ${last.text}`;
    if (mark.state === state) return;
    mark.state = state;
    button.replaceChildren(...glyphsOf(members));
    const name = members.length > 1 ? `${members.length} ${last.lane} from ${clock(members[0].at)} on, the last: ${last.text}` : `${clock(last.at)} ${last.text}`;
    button.title = name;
    button.setAttribute("aria-label", name);
  }

  open(key) {
    this.current = key;
    this.onOpen(this.made.get(key).members);
  }

  press(event) {
    const to = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (to === undefined || !this.order.length) return;
    const at = Math.max(0, Math.min(this.order.length - 1, this.order.indexOf(this.current) + to));
    this.made.get(this.order[at]).button.focus();
    event.preventDefault();
  }
}

// Each kind of the members once, with how many there are: none hides another.
function glyphsOf(members) {
  const counts = new Map();
  for (const { glyph, colour } of members) counts.set(glyph, { colour, count: (counts.get(glyph)?.count ?? 0) + 1 });
  return [...counts].map(([glyph, { colour, count }]) => {
    const made = el("span", {}, count > 1 ? `${glyph}${count} ` : `${glyph} `);
    made.style.color = `var(${colour})`;
    return made;
  });
}
