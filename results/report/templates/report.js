const byId = (id) => document.getElementById(id);
const cases = JSON.parse(byId("job-data").textContent);
const numbers = [...document.querySelectorAll("input[data-fleet]")];
const fleets = numbers.map((input) => input.dataset.fleet);
const cell = (tag, text, number) => {
  const node = document.createElement(tag);
  // Numbers break only before their interval, so that the table fits a narrow screen.
  const parts = number ? String(text).split(/ (?=± |\()/) : [text];
  if (parts.length === 1) node.textContent = text;
  else for (const part of parts) {
    const span = document.createElement("span");
    span.className = "together"; span.textContent = part;
    node.append(span, " ");
  }
  if (number) node.className = "number";
  return node;
};
const line = (...cells) => { const node = document.createElement("tr"); node.append(...cells); return node; };
const grouped = (value, place) => {
  const scale = 10 ** place;
  const [whole, rest] = (Math.round(value * scale) / scale).toFixed(Math.max(place, 0)).split(".");
  return whole.replace(/\B(?=(\d{3})+$)/g, "\u00a0") + (rest ? "." + rest : "");
};
const significant = (value, digits) => grouped(value, Math.max(digits - 1 - Math.floor(Math.log10(value)), 0));
// Numbers have the digits of their error, as in all tables: one, or two if it starts with 1 or 2 or its sides differ.
const written = ({ value, low, high }) => {
  if (low === null || !(high > low)) return significant(value, 4);
  const error = Math.max(high - value, value - low), exponent = Math.floor(Math.log10(error));
  const place = -exponent + (error / 10 ** exponent < 2.95 ? 1 : 0), two = 1 - exponent;
  const symmetric = Math.round(error * 10 ** place) - Math.min(high - value, value - low) * 10 ** place < 1;
  return symmetric ? `${grouped(value, place)} ± ${grouped(error, place)}` : `${grouped(value, two)} (${grouped(low, two)}–${grouped(high, two)})`;
};
const map = (quantity, change) => {
  const [value, one, other] = [quantity.value, quantity.low, quantity.high].map((x) => x === null ? null : change(x));
  return one === null ? { value, low: null, high: null } : { value, low: Math.min(one, other), high: Math.max(one, other) };
};
const exactly = (value) => ({ value, low: null, high: null });
const hours = (quantity) => {
  const [factor, unit] = quantity.value < 1 ? [60, "min"] : quantity.value >= 72 ? [1 / 24, "days"] : [1, "h"];
  return written(map(quantity, (x) => x * factor)) + "\u00a0" + unit;
};
const price = (fleet) => { const usd = parseFloat(numbers[fleets.indexOf(fleet)].value); return usd > 0 ? usd : null; };

const done = (rate, paid, amount, unit) => {
  const speed = { value: rate.rate, low: rate.low, high: rate.high };
  if (unit === "samples") {
    const time = map(speed, (x) => amount / x / 3600);
    return { time, samples: exactly(amount), cost: paid === null ? null : map(time, (x) => x * paid) };
  }
  if (unit === "usd" && paid === null) return null;
  const time = unit === "usd" ? amount / paid : amount;
  return { time: exactly(time), samples: map(speed, (x) => x * time * 3600), cost: paid === null ? null : exactly(time * paid) };
};

// Of two fleets, the page has the ratios of prices below which the first, and above which the second, surely wins.
const beats = (one, other, prices, limits) => {
  const [low] = limits[one]?.[other] ?? [], [, high] = limits[other]?.[one] ?? [];
  if (low !== undefined) return prices[one] / prices[other] < low;
  return high !== undefined && high !== null && prices[other] / prices[one] > high;
};
const ranked = (item, priceOf) => {
  const names = fleets.filter((fleet) => item.fleets[fleet] && item.fleets[fleet].rate && priceOf[fleet]);
  const worth = (fleet) => item.fleets[fleet].rate / priceOf[fleet] / item.fleets[fleet].gpus;
  const unbeaten = names.filter((one) => !names.some((other) => other !== one && beats(other, one, priceOf, item.limits)));
  const [best = null, ...tied] = unbeaten.sort((one, other) => worth(other) - worth(one));
  return { best, alone: names.length === 1, tied };
};
const sentence = (word, { best, alone, tied }) => {
  if (best === null || fleets.length < 2) return "";
  if (alone) return "Only one fleet has a figure" + (word === "Cheapest" ? " and a price" : "") + ": " + best + ". ";
  return tied.length ? word + ": no significant difference between " + [best, ...tied].join(" and ") + ". " : word + ": " + best + ". ";
};

const update = () => {
  const prices = Object.fromEntries(fleets.map((fleet) => [fleet, price(fleet)]));
  const item = cases[byId("job-case").value], unit = byId("job-unit").value, amount = parseFloat(byId("job-amount").value);
  byId("job-unit").options[0].textContent = item.unit;
  const rows = fleets.map((fleet) => {
    const rate = item.fleets[fleet];
    if (!rate) return line(cell("th", fleet), cell("td", "not measured"), cell("td", ""), cell("td", ""));
    if (rate.failed) return line(cell("th", fleet), cell("td", rate.failed), cell("td", ""), cell("td", ""));
    const found = amount > 0 ? done(rate, prices[fleet] === null ? null : prices[fleet] * rate.gpus, amount, unit) : null;
    if (!found) return line(cell("th", fleet), cell("td", amount > 0 ? "enter a price" : ""), cell("td", ""), cell("td", ""));
    return line(cell("th", fleet), cell("td", hours(found.time), true), cell("td", found.cost ? written(found.cost) : "enter a price", true), cell("td", written(found.samples), true));
  });
  byId("job-head").replaceChildren(line(cell("th", ""), cell("th", "time", true), cell("th", "USD", true), cell("th", item.unit, true)));
  byId("job-rows").replaceChildren(...rows);
  const even = Object.fromEntries(fleets.map((fleet) => [fleet, 1]));
  byId("job-answer").textContent = sentence("Cheapest", ranked(item, prices)) + sentence("Fastest", ranked(item, even));

  const wins = Object.fromEntries(fleets.map((fleet) => [fleet, 0]));
  const body = cases.map((one) => {
    const { best, alone, tied } = ranked(one, prices);
    if (best !== null && !alone && !tied.length) wins[best] += 1;
    const values = fleets.map((fleet) => {
      const rate = one.fleets[fleet];
      if (!rate) return "";
      return rate.failed || (prices[fleet] ? significant(rate.rate * 3.6 / (prices[fleet] * rate.gpus), 4) : "");
    });
    const winner = best === null ? "" : alone ? "only " + best : tied.length ? "~" : best;
    return line(cell("td", one.label), ...values.map((value) => cell("td", value, true)), cell("td", winner));
  });
  byId("cost-head").replaceChildren(line(cell("th", "case"), ...fleets.map((fleet) => cell("th", fleet, true)), cell("th", "most per dollar")));
  byId("cost-rows").replaceChildren(...body);
  byId("cost-verdict").textContent = fleets.length > 1 ? "Most samples per dollar at these prices, significant differences only: " + fleets.map((fleet) => fleet + " in " + wins[fleet]).join(", ") + " of " + cases.length + " cases. ~ no significant difference." : "";
};
// Browsers print only what is unfolded.
let folded = [];
addEventListener("beforeprint", () => { folded = [...document.querySelectorAll("details:not([open])")]; for (const part of folded) part.open = true; });
addEventListener("afterprint", () => { for (const part of folded) part.open = false; });
if (cases.length) {
  byId("job-case").append(...cases.map((item, at) => { const option = document.createElement("option"); option.value = at; option.textContent = item.label; return option; }));
  for (const input of numbers) input.addEventListener("input", update);
  for (const id of ["job-case", "job-unit", "job-amount"]) byId(id).addEventListener("input", update);
  byId("job").hidden = false;
  update();
}
