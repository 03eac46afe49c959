"""browser_test.py BROWSER RUNS: opens the pages of the last run in the folder RUNS in a real browser without network:
nothing goes wrong there, and the timeline zooms, moves, tells what is under the pointer and finds modules. Pictures of the
pages, as readers see them, are left beside RUNS. Skipped (77) where there is no browser."""

import pathlib
import re
import subprocess
import sys
import tempfile

browser, runs = sys.argv[1], pathlib.Path(sys.argv[2])
if browser.endswith("NOTFOUND"):
    print("skipped: there is no Chromium on this machine; .ci/run installs one")
    sys.exit(77)

# What a reader would do with each timeline, by events as his mouse and keys make them, and what comes of it.
USE = """<script>
const left = 76;  // of the first lane
const said = [...document.querySelectorAll(".timeline")].map((root, number) => {
  const timeline = window.timelines[number], canvas = root.querySelector("canvas"), tip = root.querySelector(".tip");
  const box = canvas.getBoundingClientRect(), width = box.width - left;
  const at = (kind, type, x, y, more) => canvas.dispatchEvent(
    new kind(type, {clientX: box.left + left + x, clientY: box.top + y, bubbles: true, cancelable: true, ...more}));
  const near = (a, b) => Math.abs(a - b) < 10 * (timeline.view()[1] - timeline.view()[0]) / width;  // some pixels
  canvas.setPointerCapture = () => {};  // there is no pointer
  const whole = timeline.view();
  const under = () => timeline.view()[0] + (timeline.view()[1] - timeline.view()[0]) / 4;

  const kept = under();
  at(WheelEvent, "wheel", width / 4, 40, {deltaY: -400});
  const zoomed = timeline.view();
  const larger = (whole[1] - whole[0]) / (zoomed[1] - zoomed[0]);
  const results = [Math.abs(larger - Math.E) < 1e-6 && near(under(), kept) ? "zooms about the pointer" : "zooms " + larger];

  at(PointerEvent, "pointerdown", width / 2, 40, {});
  at(PointerEvent, "pointermove", width / 2 - width / 10, 40, {});
  at(PointerEvent, "pointerup", width / 2 - width / 10, 40, {});
  const tenth = (zoomed[1] - zoomed[0]) / 10;
  results.push(near(timeline.view()[0] - zoomed[0], tenth) ? "moves" : "moves by " + (timeline.view()[0] - zoomed[0]));

  const tips = new Set();
  for (let y = 30; y < box.height; y += 10) {
    for (let x = 2; x < width; x += 3) {
      at(PointerEvent, "pointermove", x, y, {});
      if (tip.style.display === "block") tips.add(tip.textContent);
    }
  }
  const good = [...tips].filter(text => /^(forward|backward) of \\S.*\\nmicrobatch \\d+\\n.* from .*/.test(text));
  results.push(good.length > 5 ? "tells what is under the pointer" : "tells " + [...tips].slice(0, 3).join("|"));
  at(PointerEvent, "pointerleave", 0, 0, {});
  if (tip.style.display !== "none") results.push("does not stop telling");

  at(MouseEvent, "dblclick", width / 2, 40, {});
  const again = timeline.view();
  results.push(again[0] <= whole[0] && again[1] === whole[1] ? "shows all again" : "shows " + again);

  const colours = () => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
    copy.drawImage(canvas, 0, 0);
    return new Set(new Uint32Array(copy.getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size;
  };
  const before = colours();
  const search = root.querySelector("input");
  search.value = "CODER";  // whichever half of the T5 is called from elsewhere
  search.dispatchEvent(new Event("input"));
  results.push(before > 20 && colours() !== before ? "fades what is not sought" : `has ${before} colours`);
  return results.join(", ");
});
document.title = "used: " + said.join("; ");
</script></body>"""

WORKS = ("zooms about the pointer, moves, tells what is under the pointer, shows all again, "
         "fades what is not sought")


def open_page(text, what="--dump-dom"):
    """What the browser makes of the page, its text unless `what` says otherwise, and what it complained about."""
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.html"
        page.write_text(text)
        done = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
             "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1320,2000", what,
             f"--user-data-dir={folder}/profile", page.as_uri()],
            capture_output=True, text=True, timeout=60, check=False)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def check(condition, *what):
    if not condition:
        sys.exit(" ".join(str(part) for part in what))


def picture_of(text, path):
    """How many bytes it takes, which grows with what there is to see."""
    path.unlink(missing_ok=True)
    _, complaints = open_page(text, f"--screenshot={path}")
    check(path.exists() and path.read_bytes().startswith(b"\x89PNG"), "no picture of", path.stem, *complaints)
    return path.stat().st_size


def main():
    _, complaints = open_page("<html><body><script>noSuchFunction()</script></body></html>")
    check(len(complaints) == 1, "an error in a page goes unnoticed:", complaints)
    _, complaints = open_page("<html><meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\">"
                              "<body><img src='http://example.org/x.png'></body></html>")
    check(complaints, "a page that asks the network goes unnoticed")
    blank = picture_of("<html><body></body></html>", runs.parent / "blank.png")
    run = sorted(runs.glob("demo-*"))[-1]
    for name, timelines in {"report.html": 2, "timeline.html": 1}.items():
        page = (run / name).read_text()
        seen = picture_of(page, (runs.parent / name).with_suffix(".png"))
        check(seen > 5 * blank, name, "looks empty:", seen, "bytes, a blank page", blank)
        dom, complaints = open_page(page.replace("</body>", USE))
        check(not complaints, name, "complains:", *complaints)
        title = re.search("<title>(.*?)</title>", dom)
        wanted = "used: " + "; ".join([WORKS] * timelines)
        check(title and title[1] == wanted, name, "says", title and title[1], "instead of", wanted)
        found = re.findall(r'class="found">(\d+) intervals', dom)
        check(len(found) == timelines and all(int(number) > 0 for number in found), name, "finds", found)
        check(dom.count("<canvas") == timelines, name, "has", dom.count("<canvas"), "canvases")


main()
