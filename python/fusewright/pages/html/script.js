(function () {
  var root = document.documentElement, button = document.querySelector(".theme"), key = "fusewright-theme";
  function dark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  function say() {
    button.textContent = dark() ? "light" : "dark";
    button.setAttribute("aria-label", "switch to " + button.textContent + " colours");
  }
  try { var kept = localStorage.getItem(key); if (kept === "dark" || kept === "light") root.dataset.theme = kept; }
  catch (nothing) { /* pages from a file may not remember */ }
  say();
  document.querySelectorAll(".panel > .scroll").forEach(function (place) {
    place.scrollLeft = (place.scrollWidth - place.clientWidth) / 2;
  });
  button.addEventListener("click", function () {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem(key, root.dataset.theme); } catch (nothing) { /* as above */ }
    say();
  });
})();
