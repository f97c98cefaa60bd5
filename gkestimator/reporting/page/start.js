// ---------------------------------------------------------------- the page
function theme(name) {
  document.documentElement.dataset.theme = name;
  for (const drawn of charts) draw(drawn);
}
document.querySelector("h1").textContent = doc.title;
document.getElementById("subtitle").textContent = doc.subtitle;
document.getElementById("closing").append(...doc.closing.map(line => make("li", { textContent: line })));
const toggle = document.getElementById("theme");
toggle.addEventListener("click", () => theme(dark() ? "light" : "dark"));
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
views[doc.kind]();
