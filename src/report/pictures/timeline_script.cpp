// report/pictures/timeline_script.cpp: runs in a browser, without network.
#include "report/pictures/timeline_script.h"

namespace smp::report {

const char* timeline_style() {
  return R"css(
.timeline { font: 13px system-ui, sans-serif; color: #222; }
.timeline .bar { display: flex; flex-wrap: wrap; gap: 12px; align-items: center; margin: 8px 0; }
.timeline input { font: inherit; padding: 4px 8px; width: 22em; }
.timeline button { font: inherit; padding: 4px 10px; }
.timeline canvas { width: 100%; display: block; border: 1px solid #ddd; cursor: grab; }
.timeline .found { color: #666; }
.timeline .tip { position: fixed; pointer-events: none; background: #222; color: #fff; padding: 6px 9px;
  border-radius: 4px; white-space: pre; font-size: 12px; display: none; z-index: 9; }
)css";
}

const char* timeline_script() {
  return R"js(
// data: {modules, simulated, ranks: [{name, start, end, between: [span], spans: [span]}], arrows: [[from rank, start, to
// rank, end]], path: [[rank, start, end, computing]]}; a span is [start, end, cpu, microbatch, module, phase]. Times in
// ns since the start of the step; what was between it and the one before has times below 0.
function showTimeline(root, data) {
  const phases = ["forward", "backward", "optimizer", "smp", "weight gradients", "host"];
  const between = {2: ["optimizer.step()", "#9a9a9a"], 3: ["smp between steps", "#5f5f5f"],
                   5: ["the program between steps", "#e3d5b0"]};
  const left = 76, axis = 26, lane = 34, gap = 8;
  // A step may have more spans than a call may have arguments.
  const extreme = (pick, numbers, start) => numbers.reduce((a, b) => pick(a, b), start);
  const end = extreme(Math.max, data.ranks.flatMap(r => [r.end].concat(r.spans.map(s => s[1]))), 1);
  const begin = extreme(Math.min, data.ranks.flatMap(r => r.between.map(s => s[0])), 0);
  const home = Math.max(begin, -end);  // of the time before no more than the step is long
  for (const rank of data.ranks) rank.spans = rank.between.concat(rank.spans);
  const bar = document.createElement("div");
  bar.className = "bar";
  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "find modules by path";
  search.setAttribute("aria-label", "find modules by path");
  const whole = document.createElement("button");
  whole.textContent = begin < 0 ? "step and before" : "whole step";
  const found = document.createElement("span");
  found.className = "found";
  bar.append(search, whole, found);
  const canvas = document.createElement("canvas");
  const tip = document.createElement("div");
  tip.className = "tip";
  root.append(bar, canvas, tip);
  const pen = canvas.getContext("2d");
  const height = axis + data.ranks.length * (lane + gap) + 4;
  let from = home, to = end, width = 1000, wanted = "", drag = null;

  const moduleName = span => between[span[5]] ? between[span[5]][0] : span[4] < 0 ? "the step body"
                             : data.modules[span[4]] || "the model";
  const matches = span => wanted !== "" && moduleName(span).toLowerCase().includes(wanted);
  const x = time => left + (time - from) / (to - from) * (width - left);
  const timeAt = at => from + (at - left) / (width - left) * (to - from);
  const duration = ns => ns < 0 ? "\u2212" + duration(-ns) : ns >= 1e10 ? (ns / 1e9).toFixed(1) + " s" : ns >= 1e6 ? (ns / 1e6).toFixed(2) + " ms"
                                    : (ns / 1e3).toFixed(1) + " \u00b5s";

  function color(span) {
    if (between[span[5]]) return between[span[5]][1];
    if (span[3] < 0 || span[5] > 1) return "#9a9a9a";
    const hue = (210 + 137.508 * span[3]) % 360;
    return span[5] === 0 ? `hsl(${hue} 70% 76%)` : `hsl(${hue} 62% 40%)`;
  }
  function tick() {
    const rough = (to - from) / Math.max(2, (width - left) / 110);
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    return [1, 2, 5, 10].map(f => f * power).find(step => step >= rough);
  }
  function drawAxis() {
    const step = tick();
    pen.fillStyle = "#444";
    pen.strokeStyle = "#e2e2e2";
    pen.textAlign = "center";
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
      pen.beginPath();
      pen.moveTo(x(time), axis - 6);
      pen.lineTo(x(time), height);
      pen.stroke();
      const unit = end >= 1e7 ? [1e6, "ms"] : [1e3, "\u00b5s"];
      const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step / unit[0]))));
      pen.fillText((time / unit[0]).toFixed(digits) + " " + unit[1], x(time), 14);
    }
    if (begin < 0 && from < 0 && to > 0) {
      pen.fillStyle = "#666";
      pen.fillRect(x(0), axis - 6, 1, height - axis + 6);
    }
  }
  function drawLane(rank, number) {
    const top = axis + number * (lane + gap);
    pen.fillStyle = "#f3f3f3";
    pen.fillRect(left, top, width - left, lane);
    for (const span of rank.spans) {
      if (span[1] < from || span[0] > to) continue;
      const begin = Math.max(left, x(span[0])), size = Math.max(0.5, Math.min(width, x(span[1])) - begin);
      pen.globalAlpha = wanted === "" || matches(span) ? 1 : 0.15;
      pen.fillStyle = color(span);
      pen.fillRect(begin, top, size, lane);
      if (size > 14 && span[3] >= 0) {
        pen.fillStyle = span[5] === 1 ? "#fff" : "#222";
        pen.textAlign = "center";
        pen.fillText(span[3], begin + size / 2, top + lane / 2 + 4);
      }
    }
    pen.globalAlpha = 1;
    pen.fillStyle = "#fff";
    pen.fillRect(0, top, left - 1, lane);
    pen.fillStyle = "#222";
    pen.textAlign = "right";
    pen.fillText(rank.name, left - 10, top + lane / 2 + 4);
  }
  const laneTop = number => axis + number * (lane + gap);
  function drawArrows() {
    const seen = data.arrows.filter(a => a[3] >= from && a[1] <= to);
    if (seen.length > 400) return;
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, width - left, height);
    pen.clip();
    pen.strokeStyle = pen.fillStyle = "rgba(30, 30, 30, 0.55)";
    for (const [source, start, target, stop] of seen) {
      const down = target > source, begin = laneTop(source) + (down ? lane : 0), tip = laneTop(target) + (down ? 0 : lane);
      const way = down ? -5 : 5;
      pen.beginPath();
      pen.moveTo(x(start), begin);
      pen.lineTo(x(stop), tip);
      pen.stroke();
      pen.beginPath();
      pen.moveTo(x(stop), tip);
      pen.lineTo(x(stop) - 3, tip + way);
      pen.lineTo(x(stop) + 3, tip + way);
      pen.fill();
    }
    pen.restore();
  }
  function drawPath() {
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, width - left, height);
    pen.clip();
    for (const [rank, start, stop, computing] of data.path) {
      if (stop < from || start > to) continue;
      pen.fillStyle = computing ? "#111" : "#d03a2b";
      pen.fillRect(x(start), laneTop(rank) + lane + 1, Math.max(1, x(stop) - x(start)), 3);
    }
    pen.restore();
  }
  function draw() {
    const scale = window.devicePixelRatio || 1;
    width = canvas.clientWidth || 1000;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = height + "px";
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    drawAxis();
    data.ranks.forEach(drawLane);
    drawPath();
    drawArrows();
  }
  function look(low, high) {
    const size = Math.min(end - begin, Math.max(100, high - low));
    from = Math.min(Math.max(begin, low), end - size);
    to = from + size;
    draw();
  }
  function spanAt(event) {
    const box = canvas.getBoundingClientRect(), y = event.clientY - box.top - axis;
    const rank = data.ranks[Math.floor(y / (lane + gap))], time = timeAt(event.clientX - box.left);
    if (!rank || y % (lane + gap) > lane || event.clientX - box.left < left) return null;
    const near = (to - from) / (width - left);
    return rank.spans.find(s => s[0] <= time && time <= Math.max(s[1], s[0] + near)) || null;
  }
  function point(event) {
    const span = spanAt(event);
    tip.style.display = span ? "block" : "none";
    if (!span) return;
    tip.textContent = (between[span[5]] ? "" : `${phases[span[5]]} of `) + moduleName(span) +
      (span[3] >= 0 ? `\nmicrobatch ${span[3]}` : "") + `\n${duration(span[1] - span[0])} from ${duration(span[0])}` +
      (data.simulated ? "" : `, processor ${duration(span[2])}`);
    tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = event.clientY + 16 + "px";
  }
  function find() {
    wanted = search.value.trim().toLowerCase();
    const all = data.ranks.flatMap(r => r.spans).filter(matches);
    const time = all.reduce((sum, s) => sum + s[1] - s[0], 0);
    found.textContent = wanted === "" ? "" : `${all.length} intervals, ${duration(time)}`;
    draw();
  }
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const at = timeAt(event.clientX - canvas.getBoundingClientRect().left);
    const factor = Math.exp(event.deltaY / 400);
    look(at - (at - from) * factor, at + (to - at) * factor);
  }, {passive: false});
  canvas.addEventListener("pointerdown", event => {
    drag = {x: event.clientX, from, to};
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointermove", event => {
    if (!drag) return point(event);
    const moved = (drag.x - event.clientX) / (width - left) * (drag.to - drag.from);
    look(drag.from + moved, drag.to + moved);
  });
  canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  canvas.addEventListener("dblclick", () => look(begin, end));
  whole.addEventListener("click", () => look(begin, end));
  search.addEventListener("input", find);
  window.addEventListener("resize", draw);
  draw();
  return {look, find: text => { search.value = text; find(); }, view: () => [from, to]};
}
)js";
}

}  // namespace smp::report
