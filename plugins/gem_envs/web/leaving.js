// Leaving: marks a page that is about to be left for another, so that nobody looks at it meanwhile. Runs before every page's own
// scripts. A form is sent a moment after its button was pressed, and the answer comes later still.
(() => {
  const leave = () => {
    window.gemLeaving = true;
  };
  navigation.addEventListener("navigate", (event) => {
    if (!event.destination.sameDocument && event.downloadRequest === null) leave();
  });
  addEventListener("submit", (event) => {
    if (!event.defaultPrevented) leave();
  });
  const submit = HTMLFormElement.prototype.submit;
  HTMLFormElement.prototype.submit = function () {
    leave();
    return submit.call(this);
  };
})();
