// Mark a page as soon as it starts to navigate away, so the environment does not read it any more.
// A click on a submit button returns before the form is sent and the next page loads.
// This script runs before the scripts of every page.
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
