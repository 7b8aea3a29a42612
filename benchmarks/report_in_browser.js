// Runs in the page after its own script; the result is read from the dumped document.
window.addEventListener("load", () => {
  const found = {errors: window.faults};
  const svg = document.querySelector(".explorer svg"), panel = document.querySelector(".panel");
  const boxes = () => [...svg.querySelectorAll("g.box")];
  const world = () => svg.querySelectorAll("g")[0].parentNode.children[1].getAttribute("transform");
  const press = (key) => svg.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const start = world();
  press("+"); found.key_zooms = world() !== start;
  press("0"); const fitted = world();
  press("-"); press("0"); found.key_fits = world() === fitted;
  press("ArrowRight"); found.key_chooses = panel.textContent.includes("device");
  const last = boxes().at(-1), dim = () => svg.querySelectorAll(".box.dim, .line.dim").length;
  last.dispatchEvent(new PointerEvent("pointerenter"));
  found.hover_lights_table = document.querySelectorAll("#part-rows .chosen").length > 0;
  last.dispatchEvent(new PointerEvent("pointerleave"));
  found.hover_ends = dim() === 0;
  last.dispatchEvent(new MouseEvent("click", {bubbles: true}));
  found.click_tells = panel.textContent.includes("saved activations");
  const search = document.querySelector(".search"), row = document.querySelector("#part-rows tr:last-child");
  boxes()[0].dispatchEvent(new MouseEvent("click", {bubbles: true}));
  search.value = row.dataset.name; search.dispatchEvent(new Event("input"));
  search.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
  found.search_finds = panel.querySelector("h3").textContent === row.dataset.name;
  const moves = Object.keys(moves_of());
  if (moves.length) {
    page.reveal(Number(moves[0]));
    panel.querySelectorAll("input[type=radio]")[1].click();
    found.move_gives_pins = document.querySelector(".pins input").value.startsWith("pins={'");
  }
  const many = data.parts.findIndex((part) => part.tree);
  if (many >= 0) {
    page.reveal(many);
    const count = boxes().length;
    press("Enter");
    found.part_opens_into_layers = boxes().length > count && panel.textContent.includes("layer");
    const frame = svg.querySelector(".frame rect").getBoundingClientRect();
    const its = boxes().map((one) => one.querySelector(".body").getBoundingClientRect());
    const inside = its.filter((a) => a.left >= frame.left && a.right <= frame.right && a.top >= frame.top && a.bottom <= frame.bottom);
    found.layers_in_their_frame = inside.length === boxes().length - count + 1;
    found.no_box_on_the_frame = !its.some((a) => !inside.includes(a) && meet(a, frame));
    press("Escape");
    found.layers_close = boxes().length === count && !svg.querySelector(".frame");
  }
  const head = document.querySelector("#parts th");
  head.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
  found.key_sorts = head.tabIndex === 0 && head.getAttribute("aria-sort") === "ascending";
  const began = performance.now();
  document.querySelector("[data-do=open]").click();
  found.opens_all = boxes().length === document.querySelectorAll("#part-rows tr").length;
  const once = performance.now();
  for (let turn = 0; turn < 20; turn += 1) { press(turn % 2 ? "+" : "-"); svg.getBoundingClientRect(); }
  const each = performance.now();
  boxes()[5 % boxes().length].dispatchEvent(new PointerEvent("pointerenter")); svg.getBoundingClientRect();
  const hovered = performance.now();
  found.milliseconds = [once - began, (each - once) / 20, hovered - each].map((ms) => ms.toFixed(1)).join(" / ");
  const labels = [...svg.querySelectorAll("text.label")].map((one) => one.getBoundingClientRect());
  const rects = boxes().map((one) => one.querySelector(".body").getBoundingClientRect());
  found.no_boxes_meet = !rects.some((a, n) => rects.some((b, m) => m > n && meet(a, b)));
  found.no_label_on_a_box = !labels.some((a) => rects.some((b) => meet(a, b)));
  found.names_in_their_boxes = boxes().every((one) => one.querySelector(".name").getBBox().width <= one.querySelector(".body").getBBox().width);
  found.figures_as_in_tables = `${bytes(1152)}, ${bytes(1023488)}, ${time(5.5e-9)}, ${percent(0.125)}` === "1.12 KiB, 1000 KiB, 5.50 ns, 12 %";
  document.querySelector("[data-do=close]").click();
  found.fits_width = document.documentElement.scrollWidth <= window.innerWidth;
  document.body.setAttribute("data-found", JSON.stringify(found));
});
const moves_of = () => data.moves;
