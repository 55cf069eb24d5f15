// Figures: of one answer from its usage, of the server from /metrics.

/** Figures under an answer, as elements. */
function figuresOf(answer) {
  const usage = answer.usage;
  if (!usage || answer.first === null) return [];
  const tokens = usage.completion_tokens;
  const figures = [["tokens", tokens]];
  // After the first; where all came at once, from the question on.
  const decoding = answer.last - answer.first > 200;
  const seconds = (answer.last - (decoding ? answer.first : answer.started)) / 1000;
  figures.push(["tok/s", ((tokens - (decoding ? answer.firstTokens : 0)) / seconds).toFixed(1)]);
  figures.push(["ms to the first", Math.round(answer.first - answer.started)]);
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  figures.push([`of ${usage.prompt_tokens} prompt tokens cached`, cached]);
  const accepted = usage.completion_tokens_details?.accepted_prediction_tokens;
  // Every step says one token and those drafted ones that were right.
  if (accepted !== undefined && tokens > accepted) figures.push(["accept length", (tokens / (tokens - accepted)).toFixed(2)]);
  return figures.map(([name, value]) => element("span", {}, element("b", {}, String(value)), ` ${name}`));
}

/** Values of a metrics page by name, summed over labels. */
function parseMetrics(page) {
  const values = new Map();
  for (const line of page.split("\n")) {
    const found = /^([a-z_0-9]+)(?:\{.*\})? (\S+)$/.exec(line);
    if (found) values.set(found[1], (values.get(found[1]) ?? 0) + Number(found[2]));
  }
  return (name) => values.get(`perilune_${name}`) ?? 0;
}

/** The panel "Server, live": asks every second while something runs, else every five, never in a hidden tab. */
class ServerFigures {
  rates = [];
  before = null;

  constructor(key, isBusy) {
    this.key = key;
    this.isBusy = isBusy;
    document.addEventListener("visibilitychange", () => this.poll());
  }

  async poll() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    const wrong = document.getElementById("s-wrong");
    try {
      const page = await (await ask("/metrics", this.key())).text();
      this.show(parseMetrics(page), performance.now());
      wrong.hidden = true;
    } catch (problem) {
      wrong.textContent = problem.message;
      wrong.hidden = false;
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.poll(), this.isBusy() ? 1000 : 5000);
  }

  show(value, now) {
    const counts = ["generation_tokens", "draft_tokens_accepted", "draft_verifications"].map((name) => value(`${name}_total`));
    const before = this.before ?? { now, counts };
    const [tokens, accepted, verified] = counts.map((count, place) => count - before.counts[place]);
    const rate = now > before.now ? Math.max(0, (1000 * tokens) / (now - before.now)) : 0;
    this.before = { now, counts };
    this.rates = [...this.rates, { now, rate }].filter((point) => now - point.now <= 60_000);
    const put = (id, text) => (document.getElementById(id).textContent = text);
    put("s-rate", rate.toFixed(rate < 10 ? 1 : 0));
    // Of the last moment, where anything was verified in it; else of all time.
    const [right, tries] = verified > 0 ? [accepted, verified] : [counts[1], counts[2]];
    put("s-accept", tries > 0 ? (1 + right / tries).toFixed(2) : "–");
    const asked = value("prefix_cache_queries_total");
    put("s-cache", asked > 0 ? `${((100 * value("prefix_cache_hits_total")) / asked).toFixed(0)} %` : "–");
    put("s-queue", `${value("requests_running")}, ${value("requests_waiting")}`);
    put("s-slots", `${value("state_slots_used")} of ${value("state_slots")}`);
    const memory = value("arena_bytes");
    put("s-memory", memory > 0 ? `${((100 * (memory - value("arena_free_bytes"))) / memory).toFixed(0)} %` : "–");
    this.draw(now);
  }

  draw(now) {
    const most = Math.max(1, ...this.rates.map((point) => point.rate));
    const place = ({ now: at, rate }) => `${(100 - (now - at) / 600).toFixed(2)},${(44 - (40 * rate) / most).toFixed(2)}`;
    const line = this.rates.map(place);
    if (line.length < 2) return;
    const spark = document.getElementById("spark");
    spark.querySelector(".line").setAttribute("d", `M${line.join("L")}`);
    const start = line[0].split(",")[0];
    spark.querySelector(".under").setAttribute("d", `M${start},46L${line.join("L")}L100,46Z`);
  }
}
