// Lanes of marks under the plots, on the same axis: those that would lie on each other are one.

import { EDGE_PX, GUTTER_PX } from "./charts.js";
import { clock, el } from "./dom.js";
import { LANES } from "./moments.js";

const WIDE_PX = 26; // a mark with how many it stands for

export class Lanes {
  constructor(onOpen) {
    this.onOpen = onOpen;
    this.made = new Map(); // of each mark that is shown, its button
    this.order = [];
    this.current = null;
    this.tracks = new Map(LANES.map((name) => [name, el("div", { className: "track", role: "group", "aria-label": name })]));
    this.place = el("div", { className: "lanes", onkeydown: (event) => this.press(event) }, LANES.map((name) => el("div", { className: "lane" }, el("span", { className: "faint" }, name), this.tracks.get(name))));
    this.place.style.setProperty("--gutter", `${GUTTER_PX}px`);
    this.place.style.setProperty("--edge", `${EDGE_PX}px`);
  }

  // Buttons are kept while they move: focus stays where it is.
  draw(moments, [from, until]) {
    const width = this.place.clientWidth - GUTTER_PX - EDGE_PX;
    if (width <= 0 || until <= from) return;
    const grain = 2 ** (Math.ceil(2 * Math.log2(((until - from) * WIDE_PX) / width)) / 2); // as it was, if the width is little else
    const marks = new Map();
    const begun = new Map(); // of each lane, when its last mark began
    for (const moment of moments) {
      if (!(moment.at < begun.get(moment.lane) + grain)) begun.set(moment.lane, moment.at);
      if (moment.at < from || moment.at > until) continue;
      const key = `${moment.lane} ${grain} ${begun.get(moment.lane)}`;
      if (!marks.has(key)) marks.set(key, []);
      marks.get(key).push(moment);
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
      const button = el("button", { className: "mark", onclick: () => this.open(key), onfocus: () => { this.current = key; } });
      this.tracks.get(members[0].lane).append(button);
      this.made.set(key, { button });
    }
    const mark = this.made.get(key);
    mark.members = members;
    const { button } = mark;
    const worst = members[members.length - 1];
    button.style.left = `${100 * share}%`;
    const told = `${members.length} ${worst.glyph} ${worst.text}`;
    if (mark.told === told) return;
    mark.told = told;
    button.textContent = members.length > 1 ? `${worst.glyph}${members.length}` : worst.glyph;
    button.style.color = `var(${worst.colour})`;
    const name = members.length > 1 ? `${members.length} ${worst.lane} from ${clock(members[0].at)} on, the last: ${worst.text}` : `${clock(worst.at)} ${worst.text}`;
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
