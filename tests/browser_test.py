"""browser_test.py BROWSER RUNS: opens the pages of the last run in the folder RUNS in a real browser without network:
nothing goes wrong there, and the timeline zooms and finds modules."""

import pathlib
import re
import subprocess
import sys
import tempfile

browser, runs = sys.argv[1], pathlib.Path(sys.argv[2])

# What a reader would do with each timeline, and what it says then.
USE = """<script>
const said = window.timelines.map(timeline => {
  const [from, to] = timeline.view();
  timeline.look(from + (to - from) / 4, from + (to - from) / 2);
  const zoomed = timeline.view();
  timeline.find("encoder");
  return `${Math.round((to - from) / (zoomed[1] - zoomed[0]))} times larger`;
});
document.title = "used: " + said.join(", ");
</script></body>"""


def open_page(text):
    """The page as the browser leaves it, and what it complained about."""
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "page.html"
        page.write_text(text)
        done = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
             "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1320,2000", "--dump-dom",
             f"--user-data-dir={folder}/profile", page.as_uri()],
            capture_output=True, text=True, timeout=60, check=False)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def check(condition, *what):
    if not condition:
        sys.exit(" ".join(str(part) for part in what))


def main():
    _, complaints = open_page("<html><body><script>noSuchFunction()</script></body></html>")
    check(len(complaints) == 1, "an error in a page goes unnoticed:", complaints)
    _, complaints = open_page("<html><meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\">"
                              "<body><img src='http://example.org/x.png'></body></html>")
    check(complaints, "a page that asks the network goes unnoticed")
    run = sorted(runs.glob("demo-*"))[-1]
    for name, timelines in {"report.html": 2, "timeline.html": 1}.items():
        page = (run / name).read_text()
        dom, complaints = open_page(page.replace("</body>", USE))
        check(not complaints, name, "complains:", *complaints)
        title = re.search("<title>(.*?)</title>", dom)
        wanted = "used: " + ", ".join(["4 times larger"] * timelines)
        check(title and title[1] == wanted, name, "says", title and title[1], "instead of", wanted)
        found = re.findall(r'class="found">(\d+) intervals', dom)
        check(len(found) == timelines and all(int(number) > 0 for number in found), name, "finds", found)
        check(dom.count("<canvas") == timelines, name, "has", dom.count("<canvas"), "canvases")


main()
